"""What administrators ask to have reclaimed, until it is gone or nobody follows it up any more."""

from collections.abc import Iterable
from dataclasses import dataclass

from devward.model import ActionRequest


@dataclass(frozen=True, slots=True)
class Wish:
    """An administrator's, to have a vNPU reclaimed."""

    identity: str
    request: ActionRequest
    #: It is to wait for the short pace only.
    shorten: bool


class Wishes:
    """By the identities of vNPUs; what came first names the request."""

    def __init__(self) -> None:
        """Nothing is asked for."""
        self._wishes: tuple[Wish, ...] = ()

    def add(self, identities: Iterable[str], request: ActionRequest, *, shorten: bool) -> None:
        """Name who asks for a destruction in its record, and with `shorten` let these vNPUs wait for the short pace only."""
        self._wishes = (*self._wishes, *(Wish(identity, request, shorten) for identity in identities))

    def drop(self, request: ActionRequest) -> None:
        """Nobody follows up this request any more: what is left of its vNPUs goes its way like any other."""
        self._wishes = tuple(wish for wish in self._wishes if wish.request.request_id != request.request_id)

    def keep_only(self, present: frozenset[str]) -> None:
        """Forget what is wished for vNPUs that are gone."""
        self._wishes = tuple(wish for wish in self._wishes if wish.identity in present)

    @property
    def shortened(self) -> frozenset[str]:
        """The identities of what is to wait for the short pace only."""
        return frozenset(wish.identity for wish in self._wishes if wish.shorten)

    def request(self, identity: str) -> ActionRequest | None:
        """Return who asked for this vNPU's destruction; None: nobody did."""
        return next((wish.request for wish in self._wishes if wish.identity == identity), None)
