"""What every command is given: its arguments, the two outputs, the clock, and the way to the daemon."""

import argparse
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from devward.ctl.layout import prose
from devward.ctl.terminal import Screen, Tone, unbroken
from devward.ctl.when import Times

if TYPE_CHECKING:
    from devward.ctl.client import Client


@dataclass(frozen=True, slots=True)
class Context:
    """One run of devwardctl."""

    given: argparse.Namespace
    out: Screen
    err: Screen
    environ: Mapping[str, str]
    stdin_is_terminal: bool
    #: Microseconds of CLOCK_REALTIME since 1970.
    realtime_usec: Callable[[], int]

    @property
    def json(self) -> bool:
        """Whether JSON is wanted."""
        return bool(self.given.json)

    def times(self) -> Times:
        """Return how to say times now."""
        return Times(self.realtime_usec(), bool(self.given.utc))

    def print_json(self, document: object, *, indent: int | None = 2) -> None:
        """Print a document; in ASCII, so that nothing foreign in it reaches a terminal as it is."""
        self.out.line(json.dumps(document, indent=indent))

    def complain(self, text: str, advice: str = "") -> None:
        """Tell what is wrong on the error output, and what to do."""
        prose(self.err, f"devwardctl: {text}", further="  ")
        if advice:
            prose(self.err, advice, indent="  ", tone=Tone.FAINT)

    def on_bus(self, work: Callable[["Client"], Awaitable[int]], *, needs_daemon: bool = True, within: float | None = None) -> int:
        """Run work with a connection to the bus, and with the daemon found on it unless the work does without.

        TimeoutError where it takes more than `within` seconds.
        """
        # What only the bus needs is not loaded to print a usage message.
        from devward.ctl import client as bus

        async def with_daemon(client: "Client") -> int:
            if needs_daemon:
                await client.find()
            return await work(client)

        client = bus.Client(
            self.given.bus,
            prompt=bus.somebody_to_ask(self.stdin_is_terminal),
            environ=self.environ,
            on_pending=self._pending,
        )
        return bus.run(client, with_daemon, on_signal=self._broken_off, within=within)

    def _pending(self, request_id: str) -> None:
        prose(self.err, f"devwardd is still at it (request {request_id}); waiting for the end. Ctrl-C leaves it running.")
        self.err.flush()

    def _broken_off(self, client: "Client") -> None:
        if client.under_way:
            self.complain(
                f"Broken off; the request {client.under_way} goes on in devwardd.",
                f"See how it ends: {unbroken(f'devwardctl history --request {client.under_way}')}",
            )
