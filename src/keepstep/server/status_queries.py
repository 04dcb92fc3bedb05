"""What a server says of itself: its clock, version, how far its journal goes. Beside ``queries``; must not change anything."""

from msgspec import Struct

from keepstep import __version__
from keepstep.server.desk import Desk


class Status(Struct, frozen=True, kw_only=True):
    version: str
    now_s: float
    """By the server's clock, which deadlines and certificates are judged by."""
    entry: int
    """Newest journal entry that the answer knows of."""
    term: int
    """Of the leadership under which it was written."""
    live_jobs: int
    open_incidents: int
    nodes: int
    server: str = ""
    """Names this life of the server that answers. Empty: it is of an older version, which does not say who leads."""
    leads: bool = False
    """False: it follows; it answers questions and passes requests on."""
    leader: str = ""
    """The life of the server that leads, as its lease says; empty: nobody does."""
    leader_address: str = ""


def status(desk: Desk) -> Status:
    world = desk.world
    return Status(
        version=__version__,
        now_s=desk.now_s,
        entry=world.seq,
        term=desk.registry.term,
        live_jobs=sum(1 for job in world.live_jobs if desk.sees(job)),
        open_incidents=sum(1 for one in world.open_incidents if desk.sees(world.incidents[one].job)),
        nodes=len(world.by_node),
        server=desk.seat.server,
        leads=desk.seat.leads,
        leader=desk.seat.leader,
        leader_address=desk.seat.address,
    )
