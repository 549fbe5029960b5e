"""The object tree as clients see it, and the signals that tell them what changed.

What is published is kept as plain values; reads are answered from it. `publish` only replaces it: once in a turn of the event loop the
tree is compared with the one that was announced last, and the difference becomes signals (`changes`, pure). So however often
something changes in a turn, each object sends one PropertiesChanged an interface.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Generic, Protocol, TypeVar

from devward import names
from devward.bus.connection import Variant, check_type, variant
from devward.bus.contract import Contract, Emits
from devward.bus.wire import Encoded, InterfaceWriter, added, entry

_log = logging.getLogger(__name__)

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class PublishedObject:
    """One object: what it stands for, and the values of all properties of each of its interfaces.

    An object whose identity differs from that of the object before it at the same path is another thing: clients see the old one
    removed and the new one added.
    """

    path: str
    identity: tuple[str, ...]
    interfaces: Mapping[str, Values]


Tree = Mapping[str, PublishedObject]


@dataclass(frozen=True, slots=True)
class OutgoingSignal:
    """A signal to be sent."""

    path: str
    interface: str
    member: str
    signature: str
    body: tuple[object, ...] | Encoded


#: Signals that are sent before the event loop may do something else.
SIGNALS_PER_TURN: Final = 32

Emit = Callable[[str, str, str, str, Sequence[object] | Encoded], None]


class Named(Protocol):
    """A view that has a name."""

    @property
    def name(self) -> str: ...


View = TypeVar("View", bound=Named)


class Rendered(Generic[View]):
    """The objects of views of which there may be thousands: each is made once, and made anew only when its view differs."""

    def __init__(self, published: Callable[[View], PublishedObject]) -> None:
        self._published = published
        self._made: dict[str, tuple[View, PublishedObject]] = {}

    def of(self, views: Sequence[View]) -> Iterator[PublishedObject]:
        """Return the objects of these views, in their order."""
        before, self._made = self._made, {}
        for view in views:
            known = before.get(view.name)
            made = known if known is not None and (known[0] is view or known[0] == view) else (view, self._published(view))
            self._made[view.name] = made
            yield made[1]


class Entries:
    """What GetManagedObjects and InterfacesAdded say of each object, in the wire format; kept while the object stays the same one."""

    def __init__(self, contract: Contract) -> None:
        self._writers = {
            name: InterfaceWriter(name, {prop.name: prop.signature for prop in interface.properties.values()})
            for name, interface in contract.interfaces.items()
        }
        self._kept: dict[str, tuple[PublishedObject, bytes]] = {}

    def one(self, shown: PublishedObject) -> bytes:
        """Return one object."""
        known = self._kept.get(shown.path)
        if known is None or known[0] is not shown:
            known = (shown, entry(shown.path, [(self._writers[name], values) for name, values in shown.interfaces.items()]))
            self._kept[shown.path] = known
        return known[1]

    def of(self, objects: Iterable[PublishedObject]) -> list[bytes]:
        """Return all objects that there are, and forget those that are not there any more."""
        found = [(shown, self.one(shown)) for shown in objects]
        self._kept = {shown.path: (shown, data) for shown, data in found}
        return [data for _, data in found]


class PublishError(Exception):
    """A value that does not fit the contract was about to be published: a mistake in the code."""


class Publisher:
    """Holds the tree. `strict` raises PublishError for what does not fit the contract; otherwise it is logged and the old value stays."""

    def __init__(self, contract: Contract, emit: Emit, *, strict: bool) -> None:
        self._contract = contract
        self._emit = emit
        self._strict = strict
        self._tree: Tree = MappingProxyType({})
        #: The objects as they were given, by path: the same one again costs nothing.
        self._given: Mapping[str, PublishedObject] = {}
        self._announced: Tree = self._tree
        self._entries = Entries(contract)
        self._waiting: deque[Iterator[OutgoingSignal]] = deque()
        self._announce_due = False
        self._sending = False

    @property
    def tree(self) -> Tree:
        """The objects by path."""
        return self._tree

    def publish(self, objects: Iterable[PublishedObject]) -> None:
        """Make these the objects on the bus; called in the event loop. Signals follow in its next turn, in several where they are many."""
        tree: dict[str, PublishedObject] = {}
        given: dict[str, PublishedObject] = {}
        for one in objects:
            shown = self._tree.get(one.path) if self._given.get(one.path) is one else self._checked(one)
            given[one.path] = one
            if shown is not None:
                tree[one.path] = shown
        self._tree, self._given = MappingProxyType(tree), given
        if not self._announce_due:
            self._announce_due = True
            asyncio.get_running_loop().call_soon(self._announce)

    def entries(self) -> list[bytes]:
        """Return every object below the root in the wire format."""
        return self._entries.of(shown for path, shown in self._tree.items() if path != names.ROOT_PATH)

    def _announce(self) -> None:
        self._announce_due = False
        before, self._announced = self._announced, self._tree
        self._waiting.append(changes(self._contract, before, self._announced, self._entries.one))
        if not self._sending:
            self._send()

    def _send(self) -> None:
        """Send what waits, and let the event loop do something else in between: a thousand vNPUs may appear at once."""
        sent = 0
        while self._waiting and sent < SIGNALS_PER_TURN:
            signal = next(self._waiting[0], None)
            if signal is None:
                self._waiting.popleft()
                continue
            self._emit(signal.path, signal.interface, signal.member, signal.signature, signal.body)
            sent += 1
        self._sending = bool(self._waiting)
        if self._sending:
            asyncio.get_running_loop().call_soon(self._send)

    def _checked(self, given: PublishedObject) -> PublishedObject | None:
        """Return the object with values that fit the contract; None where a new object has one that does not."""
        before = self._tree.get(given.path)
        if before is not None and before.identity != given.identity:
            before = None
        interfaces: dict[str, Values] = {}
        for name, values in given.interfaces.items():
            old = before.interfaces.get(name, {}) if before is not None else {}
            try:
                interfaces[name] = self._checked_values(name, values, old)
            except PublishError as error:
                if self._strict:
                    raise
                _log.error("The object %s is not published: %s", given.path, error)
                return before
        return PublishedObject(given.path, given.identity, MappingProxyType(interfaces))

    def _checked_values(self, interface: str, values: Values, old: Values) -> Values:
        properties = self._contract.interfaces[interface].properties
        if values.keys() != properties.keys():
            raise PublishError(f"{interface}: the properties {sorted(values.keys() ^ properties.keys())} are missing or unknown")
        checked: dict[str, object] = {}
        for name, prop in properties.items():
            value = values[name]
            problem = _problem(prop.signature, prop.values, value)
            if not problem and prop.emits is Emits.CONST and name in old and old[name] != value:
                problem = "a constant changed"
            if problem:
                if self._strict or name not in old:
                    raise PublishError(f"{interface}.{name}: {problem}")
                _log.error("%s.%s keeps its old value: %s", interface, name, problem)
                value = old[name]
            checked[name] = value
        return MappingProxyType(checked)


def _problem(signature: str, values: frozenset[str], value: object) -> str:
    try:
        check_type(signature, value)
    except (TypeError, ValueError) as error:
        return str(error)
    if values and value not in values:
        return f"{value!r} is not among the documented values"
    return ""


def changes(contract: Contract, before: Tree, after: Tree, encode: Callable[[PublishedObject], bytes]) -> Iterator[OutgoingSignal]:
    """Yield the signals that turn a client's picture of one tree into the other: removals, then additions, then changes.

    `encode` returns an object in the wire format.
    The root object is there as long as the daemon is; it is never added or removed (ObjectManager is about the objects below it).
    """
    root, manager = names.ROOT_PATH, names.OBJECT_MANAGER_INTERFACE
    for path, old in before.items():
        new = after.get(path)
        if new is not old and (new is None or new.identity != old.identity) and path != root:
            yield OutgoingSignal(root, manager, "InterfacesRemoved", "oas", (path, tuple(old.interfaces)))
    for path, new in after.items():
        known = before.get(path)
        if new is not known and (known is None or known.identity != new.identity) and path != root:
            yield OutgoingSignal(root, manager, "InterfacesAdded", "oa{sa{sv}}", added(encode(new)))
    for path, new in after.items():
        known = before.get(path)
        if new is not known and known is not None and known.identity == new.identity:
            yield from _property_changes(contract, known, new)


def property_values(contract: Contract, interface: str, values: Values) -> dict[str, Variant]:
    """Return what GetAll says of one interface."""
    properties = contract.interfaces[interface].properties
    return {name: variant(properties[name].signature, value) for name, value in values.items()}


def _property_changes(contract: Contract, old: PublishedObject, new: PublishedObject) -> Iterator[OutgoingSignal]:
    for interface, values in new.interfaces.items():
        properties = contract.interfaces[interface].properties
        differing = [properties[name] for name, value in values.items() if old.interfaces[interface][name] != value]
        told = {prop.name: variant(prop.signature, values[prop.name]) for prop in differing if prop.emits is Emits.TRUE}
        invalidated = tuple(prop.name for prop in differing if prop.emits is Emits.INVALIDATES)
        if told or invalidated:
            yield OutgoingSignal(new.path, names.PROPERTIES_INTERFACE, "PropertiesChanged", "sa{sv}as", (interface, told, invalidated))
