"""The way from a follower to the leader: as a replica that has identified the asker. Blocks; run it in a thread."""

from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.errors import ServerGone, ServerRefused
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.core.access import Principal
from keepstep.server.desk import UnknownSubject
from keepstep.server.requests import Conflict, Forbidden
from keepstep.server.site import KeyReused, NoLeader
from keepstep.server.vitals_view import BEATS, Beats
from keepstep.wire.requests import Accepted, Request

_KINDS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (Forbidden, UnknownSubject, Conflict, KeyReused, NoLeader, ValueError)
}
"""What the leader said no with is what the asker is told."""


class Forwarding:
    """Meets following.Road. The secret of the state directory is good where all servers of the installation share it; else
    the certificate of a replica counts."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def ask(self, address: str, request: Request, by: Principal, key: str) -> Accepted:
        try:
            with self._leader(address) as leader:
                return leader.act(request, key, by)
        except ServerGone as error:
            raise NoLeader(f"the leader at {address} does not answer ({error}); try again in a few seconds") from error
        except ServerRefused as error:
            raise _KINDS.get(type(error).__name__, NoLeader)(str(error)) from error

    def beats(self, address: str) -> Beats:
        try:
            with self._leader(address) as leader:
                return leader.query(BEATS, Beats)
        except (ServerGone, ServerRefused) as error:
            raise NoLeader(str(error)) from error

    def _leader(self, address: str) -> ToolClient:
        own = self._credentials
        return ToolClient(address, own.secret(), identity_dir=own.identity_dir)
