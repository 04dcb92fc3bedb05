"""The asking side: a new key, the request for its certificate, and the identity that comes of it, as files.

An identity is three files in one directory: ``key.pem``, ``certificate.pem``, ``authority.pem``. They change together: what is
read always fits together.
"""

import contextlib
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from msgspec import Struct

from keepstep.adapters.pki.files import read_key, write_over
from keepstep.adapters.pki.names import host_names, serial_text, subject_of

KEY, CERTIFICATE, AUTHORITY = "key.pem", "certificate.pem", "authority.pem"


class NoIdentity(ValueError):
    """There is none, or its files cannot be used. Says what to do."""


class Identity(Struct, frozen=True, kw_only=True):
    role: str
    name: str
    serial: str
    not_before_s: float
    not_after_s: float
    key: Path
    certificate: Path
    authority: Path


def new_key_and_request(name: str, hosts: Sequence[str] = ()) -> tuple[bytes, bytes]:
    """(private key as PEM, PKCS #10 as DER). ``hosts``: of a replica, under which names and addresses it is reached.

    The authority takes the key, and the hosts of a replica; the name is for whoever looks at the request.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, (name or "unnamed")[:64])])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(host_names(hosts)), critical=False)
    request = builder.sign(key, hashes.SHA256())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return pem, request.public_bytes(serialization.Encoding.DER)


def store_identity(directory: Path | str, key: bytes, certificate: bytes, authority: bytes) -> None:
    """Put the three files in place of those that are there, in one step: the directory is a link to their folder.

    Raises ValueError where they do not fit together, OSError where they cannot be written.
    """
    made, directory = x509.load_pem_x509_certificate(certificate), Path(directory)
    folder = directory.with_name(f".{directory.name}.{secrets.token_hex(6)}")
    folder.mkdir(mode=0o700, parents=True)
    for name, content in ((KEY, key), (CERTIFICATE, certificate), (AUTHORITY, authority)):
        write_over(folder / name, content)
    if read_key(folder / KEY).public_key() != made.public_key():
        shutil.rmtree(folder)
        raise ValueError("the certificate is not for this key")
    before = _folder_of(directory)
    draft = directory.with_name(f"{folder.name}.link")
    draft.symlink_to(folder.name, target_is_directory=True)
    draft.replace(directory)
    if before is not None:
        with contextlib.suppress(OSError):
            shutil.rmtree(before)


def _folder_of(directory: Path) -> Path | None:
    """The folder that the link names. A real directory, put there by hand, is moved aside."""
    if directory.is_symlink():
        return directory.with_name(os.readlink(directory))
    if directory.exists():
        aside = directory.with_name(f"{directory.name}.before-{secrets.token_hex(3)}")
        directory.rename(aside)
    return None


def life_s(directory: Path | str) -> float:
    """How long the certificate holds from its beginning to its end. Raises NoIdentity."""
    identity = read_identity(directory)
    return identity.not_after_s - identity.not_before_s


def read_identity(directory: Path | str) -> Identity:
    """Raises NoIdentity."""
    directory = Path(directory)
    folder = directory.resolve()
    try:
        return _read(directory, folder)
    except NoIdentity:
        if directory.resolve() == folder:
            raise
        # It was replaced while we read, and what was there before is gone.
        return read_identity(directory)


def _read(directory: Path, folder: Path) -> Identity:
    if not (folder / CERTIFICATE).exists():
        raise NoIdentity(f"no identity in {directory}; get one with `keepstep join SERVER TOKEN`")
    try:
        certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
        subject = subject_of(certificate)
        fits = read_key(folder / KEY).public_key() == certificate.public_key()
    except (OSError, ValueError) as error:
        raise NoIdentity(
            f"the identity in {directory} cannot be used: {error}; join anew with `keepstep join`"
        ) from None
    if not fits:
        raise NoIdentity(f"the key in {directory} is not that of its certificate; join anew with `keepstep join`")
    return Identity(
        role=subject.role,
        name=subject.name,
        serial=serial_text(certificate.serial_number),
        not_before_s=certificate.not_valid_before_utc.timestamp(),
        not_after_s=certificate.not_valid_after_utc.timestamp(),
        key=folder / KEY,
        certificate=folder / CERTIFICATE,
        authority=folder / AUTHORITY,
    )
