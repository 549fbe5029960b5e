"""A stand-in for the service manager's notification socket (sd_notify(3))."""

from collections.abc import Callable

from sim.datagrams import DatagramSink

Message = dict[str, str]


class NotifySink(DatagramSink):
    """Collects the messages, each as its assignments; a name that comes twice in one message is an error."""

    def __init__(self, path: str, *, reading: bool = True) -> None:
        """Listen at `path`; `reading=False`: a manager that hangs."""
        self._messages: list[Message] = []
        super().__init__(path, reading=reading)

    def received(self, data: bytes, descriptors: list[int]) -> None:
        pairs = [line.partition("=")[::2] for line in data.decode("utf-8").splitlines()]
        assert len(dict(pairs)) == len(pairs), f"a name comes twice: {data!r}"
        self._messages.append(dict(pairs))

    def messages(self) -> list[Message]:
        """Return the messages so far, oldest first."""
        self.drain()
        return list(self._messages)

    def wait_for(self, predicate: Callable[[Message], bool], deadline: float = 30.0) -> Message:
        """Return the first message that the predicate accepts; AssertionError after `deadline` seconds."""
        self.drain()
        if not self.wait_until(lambda: any(predicate(one) for one in self._messages), deadline):
            raise AssertionError(f"no such message within {deadline} s; there are: {self._messages}")
        return next(one for one in self._messages if predicate(one))
