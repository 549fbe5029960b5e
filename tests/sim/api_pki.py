"""Certificates and kubeconfigs for the stand-in of the API server: real ones, of authorities that nobody trusts."""

import base64
import ipaddress
import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAY = 86_400


@dataclass(frozen=True)
class Pair:
    """A certificate and its key in PEM."""

    certificate: bytes
    key: bytes

    @property
    def combined(self) -> bytes:
        """Both, as the kubelet keeps them in one file."""
        return self.certificate + self.key


class Authority:
    """A certificate authority."""

    def __init__(self, name: str = "stand-in CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        builder = _builder(self._name, self._name, self._key, -DAY, 3650 * DAY)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).add_extension(usage, critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def server(self, *names: str, begins: int = -DAY, ends: int = 365 * DAY) -> Pair:
        """Return a server's, for names and addresses; seconds from now."""
        others = [_other_name(name) for name in names or ("127.0.0.1", "localhost")]
        return self._issue("kube-apiserver", begins, ends, ExtendedKeyUsageOID.SERVER_AUTH, x509.SubjectAlternativeName(others))

    def client(self, common_name: str = "system:node:lab", *, begins: int = -DAY, ends: int = 365 * DAY) -> Pair:
        """Return a client's; seconds from now."""
        return self._issue(common_name, begins, ends, ExtendedKeyUsageOID.CLIENT_AUTH, None)

    def _issue(self, name: str, begins: int, ends: int, purpose: Any, others: x509.SubjectAlternativeName | None) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_named(name), self._name, key, begins, ends).add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        builder = builder.add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        if others is not None:
            builder = builder.add_extension(others, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        plain = serialization.NoEncryption()
        return Pair(certificate, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))


def write_kubeconfig(path: Path, url: str, authority: bytes, user: dict[str, Any], cluster: dict[str, Any] | None = None) -> Path:
    """Write a kubeconfig with one context; a JSON text, which YAML includes."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "default",
        "clusters": [{"name": "c", "cluster": {"server": url, "certificate-authority-data": data(authority), **(cluster or {})}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "default", "context": {"cluster": "c", "user": "u"}}],
    }
    replace_file(path, json.dumps(document, indent=1).encode())
    return path


def write_identity(directory: Path, pair: Pair, name: str = "kubelet-client-1.pem") -> Path:
    """Put a kubelet's certificate where it keeps it, behind a link that is replaced in one step, and return the link."""
    (directory / name).write_bytes(pair.combined)
    link = directory / "kubelet-client-current.pem"
    fresh = directory / ".fresh"
    fresh.symlink_to(name)
    fresh.rename(link)
    return link


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file in one step."""
    fresh = path.with_name(f".{path.name}.fresh")
    fresh.write_bytes(content)
    os.replace(fresh, path)


def data(content: bytes) -> str:
    """Return content in the form of a kubeconfig's `-data` fields."""
    return base64.b64encode(content).decode()


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "stand-in"), x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _other_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, begins: int, ends: int) -> x509.CertificateBuilder:
    now = datetime.now(UTC).replace(microsecond=0)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before((now + timedelta(seconds=begins)).replace(tzinfo=None))
        .not_valid_after((now + timedelta(seconds=ends)).replace(tzinfo=None))
    )
