"""What a certificate file says, for people and checks. Reads only."""

from pathlib import Path

from cryptography import x509
from msgspec import Struct

from keepstep.adapters.pki.authority import fingerprint
from keepstep.adapters.pki.pinning import pin_of


class Description(Struct, frozen=True, kw_only=True):
    fingerprint: str
    """SHA-256."""
    pin: str
    """The key as join tokens spell it; of an authority."""
    begins_s: float
    expires_s: float


def describe(file: Path) -> Description:
    """Raises OSError where it cannot be read, ValueError where it is no certificate of ours."""
    certificate = x509.load_pem_x509_certificate(file.read_bytes())
    return Description(
        fingerprint=fingerprint(certificate),
        pin=pin_of(certificate),
        begins_s=certificate.not_valid_before_utc.timestamp(),
        expires_s=certificate.not_valid_after_utc.timestamp(),
    )


def describe_authority(state_dir: Path) -> tuple[Path, Description] | None:
    """The authority of the server here, else the one that this machine has joined. Raises like ``describe``."""
    for file in (state_dir / "ca" / "authority.pem", state_dir / "identity" / "authority.pem"):
        if file.exists():
            return file, describe(file)
    return None
