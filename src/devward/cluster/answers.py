"""An answer of the API server as it came, or why there is none: what api.py hands over, and what the parsers take. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something could not be learned."""

    #: A stable code.
    code: str
    #: For people, and fit to be shown: what happened, and what can be done.
    sentence: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one GET. Times are seconds of the monotonic clock."""

    #: When the request was sent: the server's state is at least as new as this.
    asked_at: float
    #: When the whole body was there, or the attempt was given up.
    received_at: float
    #: Of HTTP; 0 where there was no answer.
    status: int = 0
    #: As it was sent, and whole.
    body: bytes = b""
    #: It came over TLS, and the server's certificate was verified.
    verified: bool = False
    #: Why there is no answer, or none that is of use.
    failure: Failure | None = None
