"""What a client shows to a server: the secret of the state directory, a token, a certificate. Owns where they lie."""

import os
import secrets
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass

from keepstep.adapters.server_link import tls
from keepstep.adapters.server_link.address import Address
from keepstep.core.ids import Session
from keepstep.wire import environment


@dataclass(frozen=True, kw_only=True)
class Credentials:
    """Files are read anew for each connection: a certificate that was renewed is used from the next one on."""

    state_dir: str
    identity_dir: str
    token: str = ""
    """Given in the environment; it wins over the file of the state directory."""
    peer_secret: str = ""
    """Given in the environment: shared by the nodes of a job where they share no state directory."""

    @classmethod
    def of(cls, state_dir: str, environ: Mapping[str, str]) -> "Credentials":
        identity_dir = environ.get(environment.IDENTITY_DIR) or os.path.join(state_dir, "identity")
        return cls(
            state_dir=state_dir,
            identity_dir=identity_dir,
            token=environ.get(environment.SERVER_TOKEN, ""),
            peer_secret=environ.get(environment.PEER_SECRET, ""),
        )

    def secret(self) -> str:
        """Of the installation. Raises FileNotFoundError before the server made one."""
        if self.token:
            return self.token
        with open(os.path.join(self.state_dir, "token"), encoding="ascii") as file:
            return file.read().strip()

    def secret_of_peers(self) -> str | None:
        """What snapshot servers of one job prove to each other. None where this node has nothing that others have too.

        Raises FileNotFoundError before the server of a shared state directory made its token.
        """
        if self.peer_secret:
            return self.peer_secret
        try:
            return self.secret()
        except FileNotFoundError:
            if tls.has_certificate(self.identity_dir):
                return None
            raise

    def token_for(self, address: Address) -> str:
        """The secret of a state directory stays on its machine: where a certificate says who we are, nothing else is said."""
        if address.tls and (self.token or tls.has_certificate(self.identity_dir)):
            return self.token
        return self.secret()

    def context_for(self, address: Address) -> ssl.SSLContext | None:
        """None where the address is none of TLS. Raises tls.IdentityProblem."""
        return tls.client_context(self.identity_dir) if address.tls else None


def new_session() -> Session:
    """Sorts by age, and never comes twice."""
    return Session(f"{int(time.time()):x}-{secrets.token_hex(4)}")
