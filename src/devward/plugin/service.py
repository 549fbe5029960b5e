"""What the device plugin answers, whatever carries the question: options, the list of devices, preferences and allocations."""

from collections.abc import Callable, Sequence
from enum import StrEnum

from devward.model import DeviceKind
from devward.plugin import slots
from devward.plugin.allocator import Allocator
from devward.plugin.decision import Answer, Verdict, advance, grant, refusal
from devward.plugin.messages import Options, Wire
from devward.plugin.settings import PluginSettings
from devward.plugin.slots import Offer
from devward.plugin.streams import Streams
from devward.reasons import Reason
from devward.text import printable, quoted


class RefusedCode(StrEnum):
    """The kind of a refusal, by the name of its gRPC status."""

    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"


class Refused(Exception):
    """The kubelet gets an error, and fails the Pod with its text."""

    def __init__(self, code: RefusedCode, text: str, verdict: Verdict, kind: DeviceKind | None = None) -> None:
        """Take a text that is fit to be shown; `kind` is the device that was wanted, None for what is none that is offered."""
        super().__init__(text)
        self.code = code
        self.text = text
        self.verdict = verdict
        self.kind = kind


class DeviceService:
    """One resource, over all starts of its server.

    `on_change` is called when a stream comes or goes, or an allocation was answered; `on_refused` with the device of one that was refused,
    None where none of ours was asked for, and why.
    """

    def __init__(
        self,
        settings: PluginSettings,
        allocator: Allocator,
        wire: Wire,
        on_change: Callable[[], None],
        on_refused: Callable[[DeviceKind | None, Verdict], None],
    ) -> None:
        """Begin with nothing to offer: streams wait until `offer` has said something that is known."""
        self._settings = settings
        self._allocator = allocator
        self._wire = wire
        self._on_change = on_change
        self._on_refused = on_refused
        self._offers: tuple[Offer, ...] | None = None
        #: Encoded once: thousands of slots take milliseconds.
        self._lists: dict[Offer, bytes] = {}
        self.streams = Streams(on_change)
        self.given = 0
        self.refused = 0

    @property
    def offers(self) -> tuple[Offer, ...] | None:
        """What is told to the kubelet; None: nothing yet, since no check was completed."""
        return self._offers

    @property
    def options(self) -> Options:
        """What the kubelet is asked to ask: a preference only where there is something to prefer."""
        return Options(preferred_allocation=self._offers is not None and len(self._offers) > 1)

    def offer(self, now: Sequence[tuple[DeviceKind, bool | None]]) -> bool:
        """Take in how the devices are (None: not known now), and tell every stream at once if that is news. True: it was."""
        offers = advance(self._offers or (), now)
        if offers == self._offers or (self._offers is None and now and not offers):
            return False
        for offer in offers:
            if not offer.healthy:
                self._allocator.withdrawn(offer.kind)
        self._offers = offers
        self.streams.broadcast(b"".join(map(self._encoded, offers)))
        return True

    def prefer(self, choices: Sequence[slots.Choice]) -> list[tuple[str, ...]]:
        """Return which slots each container should have."""
        return [slots.preferred(choice) for choice in choices]

    async def allocate(self, requests: Sequence[Sequence[str]]) -> bytes:
        """Return the response for containers that are to have these slots; the same slots may be asked for again. Refused."""
        try:
            wanted = [self._kinds(request) for request in requests]
            verdicts = await self._allocator.judge(kind for kinds in wanted for kind in kinds)
            for kind, verdict in verdicts.items():
                if verdict.answer is not Answer.GIVE:
                    raise Refused(RefusedCode.FAILED_PRECONDITION, refusal(kind, verdict), verdict, kind)
        except Refused as refused:
            self.refused += 1
            self._on_change()
            self._on_refused(refused.kind, refused.verdict)
            raise
        self.given += len(wanted)
        self._on_change()
        return self._wire.allocate_response([grant(kinds, self._settings.injection) for kinds in wanted])

    def _encoded(self, offer: Offer) -> bytes:
        """Return the list of one device's slots. Lists one after the other are one list (protobuf, merging)."""
        if offer not in self._lists:
            self._lists[offer] = self._wire.devices(slots.listed(offer, self._settings.slots))
        return self._lists[offer]

    def _kinds(self, request: Sequence[str]) -> list[DeviceKind]:
        """Return the devices that slots are of, each once. Refused: for what is none that is offered."""
        if not request:
            raise _invalid("The kubelet asks for a container with no device.")
        offered = {offer.kind for offer in self._offers or ()}
        kinds: dict[DeviceKind, None] = {}
        for slot in request:
            kind = slots.kind_of(slot)
            if kind is None or kind not in offered:
                raise _invalid(f"{quoted(slot)} is no device of {printable(self._settings.resource)}.")
            kinds[kind] = None
        return list(kinds)


def _invalid(text: str) -> Refused:
    return Refused(RefusedCode.INVALID_ARGUMENT, text, Verdict(Answer.REFUSE, Reason.DEVICE_MISSING, text))
