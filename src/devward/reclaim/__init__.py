"""Reclaiming vNPUs that nobody owns: what is decided, apart from every I/O. Pure.

One cycle takes the rooms in this order, and whoever drives it only gathers, asks the broker and writes down:

    asking.py         whether Pods are listed, and for which vNPUs the host is searched
    look.py           one look, from the snapshot (cluster/snapshot.py), the picture of NPUs, the host's statement and the pins
    confirmation.py   `step`: how far every vNPU has come with it
    verdict.py        `judge`: what may become of each, and why (shield.py, reasons.py)
    history.py        `see`: what went since the look before
    stays.py          `see`: what is refused, and was not told of yet
    limits.py         `due`, `watch` (the breaker), `choose`
    controls.py       `permission`: whether anything may be destroyed at all
    contract.py       for each chosen one: `prepare` by a fresh look; the intent is recorded; `decide`; the broker is asked once
    aftermath.py      what its answer means; `conclude`
    record.py, counters.py, kept.py: what is written down, what is counted, and what outlasts the daemon

Nudges, the timer, starting up and manual actions all take this one way; only `Look.interruptions` and `Look.shorten` differ.
"""
