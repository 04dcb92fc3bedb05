"""Certificates for tests, made by the authority that servers use."""

import time
from pathlib import Path

from keepstep.adapters.pki.authority import Authority, ServerIdentity
from keepstep.adapters.pki.names import Subject
from keepstep.adapters.pki.request import new_key_and_request, store_identity
from keepstep.adapters.server_link.tls import AUTHORITY
from keepstep.wire.messages import Enrol, Enrolled


class Installation:
    """One authority, with a server's files and nodes' identities below one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.open(folder / "ca")
        self.serials: list[str] = []

    def server(self, *hosts: str, now_s: float | None = None) -> ServerIdentity:
        return self.authority.server_identity(hosts or ("localhost",), now_s if now_s is not None else time.time())

    def node(self, name: str = "n0", *, life_s: float = 3600.0, now_s: float | None = None) -> str:
        """Its identity directory."""
        place = self.folder / "identities" / name
        place.parent.mkdir(exist_ok=True)
        key, request = new_key_and_request(name)
        store_identity(place, key, self.signed(request, name, life_s, now_s), self.authority.certificate_pem)
        return str(place)

    def signed(self, request: bytes, name: str, life_s: float, now_s: float | None = None) -> bytes:
        subject = Subject(role="agent", name=name)
        signed = self.authority.sign(request, subject, now_s if now_s is not None else time.time(), life_s)
        self.serials.append(signed.serial)
        return signed.certificate

    def enrol(self, life_s: float) -> "Renewing":
        return Renewing(self, life_s)

    def stranger(self, name: str = "stranger") -> str:
        """An identity directory that knows the authority and has no certificate."""
        place = self.folder / "identities" / name
        place.mkdir(parents=True)
        (place / AUTHORITY).write_bytes(self.authority.certificate_pem)
        return str(place)


class Renewing:
    """Answers Enrol as a server does."""

    def __init__(self, installation: Installation, life_s: float) -> None:
        self.installation, self.life_s = installation, life_s

    def __call__(self, enrol: Enrol) -> Enrolled:
        certificate = self.installation.signed(enrol.request, "n0", self.life_s)
        return Enrolled(certificate=certificate, authority=self.installation.authority.certificate_pem)
