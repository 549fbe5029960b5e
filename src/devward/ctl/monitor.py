"""`devwardctl monitor`: what happens, while it happens, in plain sentences. It outlives the daemon and says when it is back."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Final, cast

from devward import names
from devward.bus.messages import SignalMessage
from devward.ctl import reclaim
from devward.ctl.actions import line
from devward.ctl.advice import cause, deed
from devward.ctl.client import Client, Result, plain
from devward.ctl.context import Context
from devward.ctl.facts import Device, Manager, Spec
from devward.ctl.failure import BUS_ADVICE, ExitStatus, Failure
from devward.ctl.layout import MIN_FLOW, wrapped
from devward.ctl.npu_facts import Card, Vnpu
from devward.ctl.reading import last, raw
from devward.ctl.terminal import Tone
from devward.ctl.wording import Said, card_changes, device_changes, manager_changes, npu_summary, spec_changes, vnpu_changes
from devward.model import RepairCause
from devward.text import printable

_RULES: Final = (
    f"type='signal',sender='{names.BUS_NAME}',path_namespace='{names.ROOT_PATH}'",
    f"type='signal',sender='org.freedesktop.DBus',member='NameOwnerChanged',arg0='{names.BUS_NAME}'",
)
Interfaces = dict[str, dict[str, object]]


def run(context: Context) -> int:
    """Follow what happens until Ctrl-C (status 0) or until the message bus goes (status 3)."""

    async def work(client: Client) -> int:
        with contextlib.suppress(asyncio.CancelledError):
            await Monitor(context, client).follow()
        return ExitStatus.OK

    return context.on_bus(work, needs_daemon=False)


class Monitor:
    """Holds what is known of every object, so that each change can be said as a change."""

    def __init__(self, context: Context, client: Client) -> None:
        self._context = context
        self._client = client
        self._known: dict[str, Interfaces] = {}
        self._met = False
        self._arrived: asyncio.Queue[SignalMessage] = asyncio.Queue()

    async def follow(self) -> None:
        """Follow for ever. Failure when the message bus goes."""
        self._client.listener = self._arrived.put_nowait
        await self._client.subscribe(*_RULES)
        self._client.owner = await self._client.present()
        if self._client.owner:
            await self._meet("runs")
        else:
            self._tell("daemon-absent", [Said("devwardd is not running; waiting for it", Tone.WARNING)])
        lost = asyncio.ensure_future(self._client.wait_lost())
        try:
            while True:
                heard = asyncio.ensure_future(self._arrived.get())
                await asyncio.wait({heard, lost}, return_when=asyncio.FIRST_COMPLETED)
                if lost.done():
                    heard.cancel()
                    raise Failure(ExitStatus.ABSENT, f"The message bus is gone. {lost.result()}", BUS_ADVICE)
                await self._hear(heard.result())
        finally:
            lost.cancel()

    async def _meet(self, verb: str) -> None:
        """Learn how everything stands, and tell it."""
        try:
            manager, objects = await self._client.objects()
        except Failure as failure:
            # It may be gone again, which is heard in its turn.
            self._tell("daemon-silent", [Said(failure.text, Tone.BAD)])
            return
        self._met = True
        self._known = {names.ROOT_PATH: {names.MANAGER_INTERFACE: manager}, **objects}
        state = Manager.of(raw(manager))
        standing = "and is ready" if state.ready else "and is not ready"
        who = f"devwardd {printable(state.version)} on {printable(state.node_name)} {verb} {standing}"
        said = [Said(who, Tone.GOOD if state.ready else Tone.BAD)]
        # What is no news of the daemon itself, such as its mode, is compared with what is usual.
        usual = Manager(ready=state.ready, not_ready_reasons=(), cdi_mode="repair", config_state="good")
        said += manager_changes(usual, state, self._context.times())
        said += [one for path in sorted(objects) if names.VNPU_INTERFACE not in objects[path] for one in _changes(path, {}, objects[path])]
        said += _summary(objects)
        self._tell("daemon-present", said, version=state.version, ready=state.ready)

    async def _hear(self, message: SignalMessage) -> None:
        match (message.interface, message.member, message.signature):
            case ("org.freedesktop.DBus", "NameOwnerChanged", "sss"):
                await self._owner_changed(*cast(tuple[str, str, str], message.body))
            case (names.PROPERTIES_INTERFACE, "PropertiesChanged", "sa{sv}as"):
                interface, changed, _ = cast(tuple[str, Mapping[str, object], Sequence[str]], message.body)
                self._changed(message.path, interface, plain(changed))
            case (names.OBJECT_MANAGER_INTERFACE, "InterfacesAdded", "oa{sa{sv}}"):
                path, interfaces = cast(tuple[str, Interfaces], message.body)
                before, self._known[path] = self._known.get(path, {}), plain(interfaces)
                self._tell("added", _changes(path, before, self._known[path]), object=path)
            case (names.OBJECT_MANAGER_INTERFACE, "InterfacesRemoved", "oas"):
                path = cast(str, message.body[0])
                self._tell("removed", [_gone(path, self._known.pop(path, {}))], object=path)
            case (names.MANAGER_INTERFACE, "SpecRepaired", "ss"):
                self._repaired(*cast(tuple[str, str], message.body))
            case (names.MANAGER_INTERFACE, "VnpuReclaimed", "uuss"):
                self._reclaimed(*cast(tuple[int, int, str, str], message.body))
            case (names.MANAGER_INTERFACE, "RequestFinished", "ssa(sss)"):
                self._finished(*cast(tuple[str, str, list[Sequence[str]]], message.body))

    async def _owner_changed(self, name: str, old: str, new: str) -> None:
        if name != names.BUS_NAME:
            return
        if old:
            self._known.clear()
            self._tell("daemon-gone", [Said("devwardd is gone; waiting for it to come back", Tone.BAD)])
        if new:
            await self._meet("is back" if self._met else "has started")

    def _changed(self, path: str, interface: str, properties: dict[str, object]) -> None:
        interfaces = self._known.setdefault(path, {})
        before = interfaces.get(interface, {})
        after = interfaces[interface] = {**before, **properties}
        if interface == names.MANAGER_INTERFACE:
            said = manager_changes(Manager.of(raw(before)), Manager.of(raw(after)), self._context.times())
        else:
            said = _changes(path, {interface: before}, {interface: after})
        self._tell("changed", said, object=path, interface=interface, properties=raw(properties))

    def _repaired(self, file: str, why: str) -> None:
        tone = Tone.PLAIN if why == RepairCause.PUBLISHED else Tone.WARNING
        said = Said(f"{printable(file)} was {deed(why)}, as {cause(why) or printable(why)}", tone)
        self._tell("spec-repaired", [said], file=file, cause=why)

    def _reclaimed(self, vdev: int, card: int, template: str, request_id: str) -> None:
        text = (
            f"devward destroyed vNPU {vdev} ({printable(template)}) of the NPU {card}, which nobody owned; request {printable(request_id)}"
        )
        self._tell("vnpu-reclaimed", [Said(text)], vdev=vdev, card=card, template=template, request_id=request_id)

    def _finished(self, request_id: str, outcome: str, rows: list[Sequence[str]]) -> None:
        results = [Result(*row[:3]) for row in rows]
        told = "; ".join(reclaim.line(result, "") if reclaim.is_vnpu(result.target) else line(result) for result in results)
        good = outcome in ("success", "noop", "dry-run")
        said = Said(
            f"request {printable(request_id)} is finished, {printable(outcome)}: {told}".rstrip(": "), Tone.PLAIN if good else Tone.BAD
        )
        listed = [{"target": one.target, "outcome": one.outcome, "reason": one.reason} for one in results]
        self._tell("request-finished", [said], request_id=request_id, outcome=outcome, results=listed)

    def _tell(self, event: str, said: Sequence[Said], **facts: object) -> None:
        context, times = self._context, self._context.times()
        if context.json:
            text = [one.text for one in said]
            context.print_json({"time_usec": times.now_usec, "event": event, "text": text, **facts}, indent=None)
        else:
            when = times.clock(times.now_usec)
            indent = " " * (len(when) + 2)
            for one in said:
                first, *others = wrapped(context.out.shown(one.text), self._columns(len(indent)))
                context.out.line(f"{context.out.painted(when, Tone.FAINT)}  {context.out.painted(first, one.tone)}")
                for other in others:
                    context.out.line(indent + context.out.painted(other, one.tone))
        context.out.flush()

    def _columns(self, indent: int) -> int | None:
        columns = self._context.out.capable.columns
        return None if columns is None else max(columns - indent, MIN_FLOW)


def _changes(path: str, before: Interfaces, after: Interfaces) -> list[Said]:
    """Say what changed about an object; from one without interfaces, how it stands."""
    said: list[Said] = []
    for interface, properties in after.items():
        old, new = before.get(interface), raw(properties)
        known = raw(old or {})
        match interface:
            case names.DEVICE_INTERFACE:
                said += device_changes(Device.of(known), Device.of(new))
            case names.SPEC_INTERFACE:
                said += spec_changes(Spec.of(known), Spec.of(new))
            case names.CARD_INTERFACE:
                said += card_changes(Card.of(last(path), known) if old else Card(), Card.of(last(path), new))
            case names.VNPU_INTERFACE:
                said += vnpu_changes(Vnpu.of(last(path), known) if old else Vnpu(), Vnpu.of(last(path), new))
    return said


def _summary(objects: Mapping[str, Interfaces]) -> list[Said]:
    """Say how many NPUs and vNPUs there are, where there are any: each vNPU by itself would fill the screen."""
    cards = [Card.of("", raw(one[names.CARD_INTERFACE])) for one in objects.values() if names.CARD_INTERFACE in one]
    vnpus = [Vnpu.of("", raw(one[names.VNPU_INTERFACE])) for one in objects.values() if names.VNPU_INTERFACE in one]
    return [Said(f"there are {npu_summary(cards, vnpus)}")] if cards or vnpus else []


def _gone(path: str, interfaces: Interfaces) -> Said:
    if names.CARD_INTERFACE in interfaces:
        return Said(f"the NPU {printable(last(path))} is gone", Tone.BAD)
    if names.VNPU_INTERFACE in interfaces:
        return Said(f"the vNPU {printable(last(path))} is gone")
    node = interfaces.get(names.DEVICE_INTERFACE, {}).get("Node", "")
    name = str(node or interfaces.get(names.SPEC_INTERFACE, {}).get("File", ""))
    return Said(f"{printable(name or path)} is not kept any more", Tone.WARNING)
