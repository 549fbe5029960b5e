"""What exists on the bus: objects, their interfaces and child nodes, and the answers that come from them alone.

Objects are those that are published, and the log control object. A path above one of them is a node without interfaces of its own, so
that `busctl tree` finds its way.
"""

from collections.abc import Mapping
from typing import cast

from devward import names
from devward.bus.connection import MethodCall, variant
from devward.bus.contract import Contract, Property
from devward.bus.log_control import LogControlInterface
from devward.bus.messages import Body
from devward.bus.publisher import Publisher, Values, property_values
from devward.bus.refusal import PROPERTY_READ_ONLY, UNKNOWN_INTERFACE, UNKNOWN_OBJECT, UNKNOWN_PROPERTY, Refusal
from devward.bus.wire import objects
from devward.text import quoted

_OF_EVERY_NODE = (names.PEER_INTERFACE, names.INTROSPECTABLE_INTERFACE)


class Objects:
    """Answers Introspectable, Properties and ObjectManager."""

    def __init__(self, contract: Contract, publisher: Publisher, log_control: LogControlInterface) -> None:
        self._contract = contract
        self._publisher = publisher
        self._log_control = log_control

    def interfaces(self, path: str, interface: str, member: str) -> tuple[str, ...]:
        """Return the interfaces of an object among which a call's member is to be looked for.

        All of them where the call names none (D-Bus specification, "Message Types": method calls). Refusal for an unknown object or
        interface. Peer is answered at any path (D-Bus specification, "org.freedesktop.DBus.Peer").
        """
        peer = self._contract.interfaces[names.PEER_INTERFACE].methods
        if interface == names.PEER_INTERFACE or (not interface and member in peer):
            return (names.PEER_INTERFACE,)
        served = self._served(path)
        if not interface:
            return served
        if interface not in served:
            raise Refusal(UNKNOWN_INTERFACE, f"The object has no interface {quoted(interface)}.")
        return (interface,)

    def introspect(self, call: MethodCall) -> Body:
        """Answer Introspect."""
        return (self._contract.introspect(self._served(call.path), self._children(call.path)),)

    def get(self, call: MethodCall) -> Body:
        """Answer Properties.Get."""
        interface, name = cast(tuple[str, str], call.body)
        found, prop = self._property(call.path, interface, name)
        return (variant(prop.signature, self._values(call.path)[found][prop.name]),)

    def get_all(self, call: MethodCall) -> Body:
        """Answer Properties.GetAll; with no interface named, all properties of the object."""
        (interface,) = cast(tuple[str], call.body)
        values = self._values(call.path)
        if interface and interface not in values:
            self.interfaces(call.path, interface, "")
            return ({},)
        wanted = [interface] if interface else list(values)
        return ({name: value for of in wanted for name, value in property_values(self._contract, of, values[of]).items()},)

    def get_managed_objects(self, _: MethodCall) -> Body:
        """Answer ObjectManager.GetManagedObjects: all objects below the root."""
        return objects(self._publisher.entries())

    def writable_property(self, path: str, interface: str, name: str) -> Property:
        """Return the property that a Set means. Refusal where there is none, or it cannot be set."""
        _, prop = self._property(path, interface, name)
        if not prop.writable:
            raise Refusal(PROPERTY_READ_ONLY, f"The property {prop.name} is read-only.")
        return prop

    def _property(self, path: str, interface: str, name: str) -> tuple[str, Property]:
        values = self._values(path)
        if interface and interface not in values:
            self.interfaces(path, interface, "")
        for candidate in [interface] if interface in values else () if interface else values:
            prop = self._contract.interfaces[candidate].properties.get(name)
            if prop is not None:
                return candidate, prop
        raise Refusal(UNKNOWN_PROPERTY, f"There is no property {quoted(name)}.")

    def _values(self, path: str) -> Mapping[str, Values]:
        """Return the interfaces that have properties, with their values."""
        if path == names.LOG_CONTROL_PATH:
            return {names.LOG_CONTROL_INTERFACE: self._log_control.values()}
        shown = self._publisher.tree.get(path)
        return shown.interfaces if shown is not None else {}

    def _served(self, path: str) -> tuple[str, ...]:
        """Return every interface of an object or node. Refusal where there is neither."""
        own = tuple(self._values(path))
        if own:
            manager = (names.OBJECT_MANAGER_INTERFACE,) if path == names.ROOT_PATH else ()
            return (*own, *_OF_EVERY_NODE, names.PROPERTIES_INTERFACE, *manager)
        if self._children(path):
            return _OF_EVERY_NODE
        raise Refusal(UNKNOWN_OBJECT, f"There is no object {quoted(path)}.")

    def _children(self, path: str) -> frozenset[str]:
        prefix = "/" if path == "/" else path + "/"
        known = (*self._publisher.tree, names.LOG_CONTROL_PATH)
        return frozenset(other.removeprefix(prefix).partition("/")[0] for other in known if other.startswith(prefix))
