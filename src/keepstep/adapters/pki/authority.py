"""The built-in certificate authority: one key in the state directory. Owns what its certificates say and how long they hold.

Must not decide who gets one: that is server.enrolment. It knows no revocation either; the server's registry does, which every
connection is checked against.
"""

import datetime
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from keepstep.adapters.pki.files import read_key, write_once, write_over
from keepstep.adapters.pki.names import Subject, host_names, serial_text, subject_of, uri_of

AUTHORITY_LIFE_S = 3650 * 86400.0
SERVER_LIFE_S = 90 * 86400.0
BACKDATED_S = 300.0
"""Certificates hold from a little before they are signed, for clocks that go slow."""
RENEW_SHARE = 1 / 3
"""A server's own certificate is made anew where less than this of its life is left."""
_CURVES = (ec.SECP256R1, ec.SECP384R1)


class Signed(Struct, frozen=True, kw_only=True):
    serial: str
    certificate: bytes
    """PEM."""


class ServerIdentity(Struct, frozen=True, kw_only=True):
    """What a listening server shows: PEM files."""

    certificate: Path
    key: Path
    authority: Path


class Authority:
    """Use ``Authority.open``."""

    def __init__(self, directory: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._directory = directory
        self._key = key
        self._certificate = certificate

    @classmethod
    def open(cls, directory: Path) -> "Authority":
        """Of that directory; made where there is none yet. Raises ValueError where its files cannot be used, OSError where
        they cannot be read or written."""
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key_file, certificate_file = directory / "authority.key", directory / "authority.pem"
        if not key_file.exists():
            if certificate_file.exists():
                raise ValueError(
                    f"{certificate_file} is there without {key_file.name}: put the key back from your backup"
                )
            write_once(key_file, _key_pem(ec.generate_private_key(ec.SECP256R1())))
        key = read_key(key_file)
        if not certificate_file.exists():
            write_once(certificate_file, _self_signed(key).public_bytes(serialization.Encoding.PEM))
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
        if certificate.public_key() != key.public_key():
            raise ValueError(
                f"{certificate_file} and {key_file.name} do not belong together: put both back from a backup"
            )
        return cls(directory, key, certificate)

    @property
    def certificate_pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def certificate(self) -> x509.Certificate:
        return self._certificate

    @property
    def fingerprint(self) -> str:
        return fingerprint(self._certificate)

    @property
    def not_after_s(self) -> float:
        return self._certificate.not_valid_after_utc.timestamp()

    def sign(self, request: bytes, subject: Subject, now_s: float, life_s: float, serial: int | None = None) -> Signed:
        """``request``: PKCS #10, DER; its key is taken, and nothing else. Raises ValueError where it is not sound."""
        return self._sign(_checked_key(request), subject, now_s, life_s, serial)

    def server_identity(self, hosts: Sequence[str], now_s: float) -> ServerIdentity:
        """For a server of this installation that is reached under ``hosts``; kept between starts while it holds."""
        files = ServerIdentity(
            certificate=self._directory / "server.pem",
            key=self._directory / "server.key",
            authority=self._directory / "authority.pem",
        )
        if not self._still_good(files, hosts, now_s):
            key = ec.generate_private_key(ec.SECP256R1())
            subject = Subject(role="server", name=hosts[0] if hosts else "server", hosts=tuple(hosts))
            signed = self._sign(key.public_key(), subject, now_s, SERVER_LIFE_S)
            write_over(files.key, _key_pem(key))
            write_over(files.certificate, signed.certificate)
        return files

    def _still_good(self, files: ServerIdentity, hosts: Sequence[str], now_s: float) -> bool:
        try:
            known = x509.load_pem_x509_certificate(files.certificate.read_bytes())
            key = read_key(files.key)
            known.verify_directly_issued_by(self._certificate)
        except (OSError, ValueError, TypeError, InvalidSignature):
            return False
        left_s = known.not_valid_after_utc.timestamp() - now_s
        fits = known.public_key() == key.public_key() and set(hosts) <= set(subject_of(known).hosts)
        return fits and left_s > SERVER_LIFE_S * RENEW_SHARE

    def _sign(
        self, key: ec.EllipticCurvePublicKey, subject: Subject, now_s: float, life_s: float, serial: int | None = None
    ) -> Signed:
        number = serial if serial is not None else new_serial()
        until_s = min(now_s + life_s, self.not_after_s)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(f"{subject.role} {subject.name}"))
            .issuer_name(self._certificate.subject)
            .public_key(key)
            .serial_number(number)
            .not_valid_before(_moment(now_s - BACKDATED_S))
            .not_valid_after(_moment(until_s))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(_purposes(subject)), critical=False)
            .add_extension(x509.SubjectAlternativeName(_names(subject)), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        made = builder.sign(self._key, hashes.SHA256())
        return Signed(serial=serial_text(number), certificate=made.public_bytes(serialization.Encoding.PEM))


def new_serial() -> int:
    """128 random bits, the highest of them set: a serial number never begins with a nought."""
    return secrets.randbits(127) | 1 << 127


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 over the whole certificate, as ``openssl x509 -fingerprint -sha256`` prints it."""
    digest = hashlib.sha256(certificate.public_bytes(serialization.Encoding.DER)).hexdigest().upper()
    return ":".join(digest[i : i + 2] for i in range(0, len(digest), 2))


def hosts_asked_for(request: bytes) -> tuple[str, ...]:
    """The names and addresses that a request wants to be reached under. Raises ValueError where it is no request."""
    try:
        names = x509.load_der_x509_csr(request).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    except (ValueError, TypeError) as error:
        raise ValueError(f"the request is no PKCS #10: {error}") from None
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def _checked_key(request: bytes) -> ec.EllipticCurvePublicKey:
    try:
        asked = x509.load_der_x509_csr(request)
        sound = asked.is_signature_valid
    except (ValueError, TypeError) as error:
        raise ValueError(f"the request is no PKCS #10: {error}") from None
    key = asked.public_key()
    if not sound:
        raise ValueError("the request is not signed by the key that it names")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, _CURVES):
        raise ValueError("the key of the request must be ECDSA P-256 or P-384")
    return key


def _self_signed(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    now_s = datetime.datetime.now(datetime.UTC).timestamp()
    name = _name(f"Keepstep authority {os.urandom(4).hex()}")
    public = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(public)
        .serial_number(new_serial())
        .not_valid_before(_moment(now_s - BACKDATED_S))
        .not_valid_after(_moment(now_s + AUTHORITY_LIFE_S))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        .sign(key, hashes.SHA256())
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _names(subject: Subject) -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(uri_of(subject.role, subject.name)), *host_names(subject.hosts)]


def _purposes(subject: Subject) -> list[x509.ObjectIdentifier]:
    """Who names no host cannot pass for a server, whatever its key is stolen for."""
    servers = [ExtendedKeyUsageOID.SERVER_AUTH] if subject.hosts else []
    return [*servers, *([] if subject.role == "server" else [ExtendedKeyUsageOID.CLIENT_AUTH])]


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=signs_certificates, crl_sign=signs_certificates,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _moment(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(int(at_s), datetime.UTC)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
