"""What a client certificate says of itself: for whom and for how long. Pure; the signature is the API server's business.

DER is walked by hand (ITU-T X.690; the fields are those of RFC 5280, 4.1): Python's ssl has no public function that reads our own
certificate, and nothing else here needs a library for it.
"""

import base64
import binascii
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_PEM: Final = re.compile(rb"-----BEGIN CERTIFICATE-----\s*([A-Za-z0-9+/=\s]+?)-----END CERTIFICATE-----")
_SEQUENCE: Final = 0x30
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
#: id-at-commonName, 2.5.4.3.
_COMMON_NAME: Final = b"\x55\x04\x03"
_DAY: Final = 86_400


class CertificateError(ValueError):
    """It is no certificate in PEM."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A client certificate; times in microseconds since 1970."""

    #: `system:node:NAME` in a kubelet's; empty if there is none.
    common_name: str
    not_before_usec: int
    not_after_usec: int

    @property
    def node(self) -> str:
        """The Node that it is for; empty if it is no Node's."""
        prefix, _, name = self.common_name.partition("system:node:")
        return "" if prefix else name

    def warning(self, now_usec: int) -> str:
        """Return a sentence where it has expired or soon will; else nothing.

        The kubelet rotates its certificate when 70 to 90 % of its time are over (k8s.io/client-go, util/certificate).
        """
        end = datetime.fromtimestamp(self.not_after_usec // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        left = self.not_after_usec - now_usec
        if left <= 0:
            return f"The client certificate expired at {end}; look at the kubelet's log and at unapproved certificate signing requests."
        if left * 10 < self.not_after_usec - self.not_before_usec:
            return f"The client certificate expires at {end} and was not rotated yet; look at the kubelet's log."
        return ""


def parse_certificate(pem: bytes) -> Certificate:
    """Return what the first certificate of a PEM file says. CertificateError."""
    found = _PEM.search(pem)
    if found is None:
        raise CertificateError("no certificate in it")
    try:
        return _certificate(base64.b64decode(b"".join(found[1].split()), validate=True))
    except (IndexError, ValueError, binascii.Error, OverflowError) as error:
        raise CertificateError(f"no certificate: {error}") from None


def _certificate(der: bytes) -> Certificate:
    body = _parts(_inside(_inside(der, _SEQUENCE), _SEQUENCE))
    if body[0][0] == _VERSION:
        del body[0]
    # serialNumber, signature, issuer, validity, subject
    (before_tag, before), (after_tag, after) = _parts(body[3][1])
    name = ""
    for _, relative in _parts(body[4][1]):
        for _, attribute in _parts(relative):
            (_, kind), (_, value) = _parts(attribute)
            if kind == _COMMON_NAME:
                name = value.decode()
    return Certificate(name, _time(before_tag, before), _time(after_tag, after))


def _time(tag: int, value: bytes) -> int:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        # Two digits of the year: 50 to 99 are of the last century (RFC 5280, 4.1.2.5.1).
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError("no time")
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()) * 1_000_000


def _inside(data: bytes, tag: int) -> bytes:
    found, value, _ = _value(data, 0)
    if found != tag:
        raise ValueError("another element is expected")
    return value


def _parts(data: bytes) -> list[tuple[int, bytes]]:
    result, position = [], 0
    while position < len(data):
        tag, value, position = _value(data, position)
        result.append((tag, value))
    return result


def _value(data: bytes, position: int) -> tuple[int, bytes, int]:
    """Return tag and content of the element at a position, and where the next one is."""
    tag, length = data[position], data[position + 1]
    position += 2
    if length >= 0x80:
        size = length & 0x7F
        if not 1 <= size <= 4:
            raise ValueError("a length of a form that DER does not have")
        length = int.from_bytes(data[position : position + size])
        position += size
    end = position + length
    if end > len(data):
        raise ValueError("it is cut off")
    return tag, data[position:end], end
