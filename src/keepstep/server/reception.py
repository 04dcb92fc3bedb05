"""Where connections arrive, whoever this server is at the moment: leading or following. Owns the change between the two.

A client that was let in by one role belongs to it until it hangs up; when the role changes all are sent away, and come back.
"""

from collections.abc import Callable

from keepstep.server.connection import Connection, Hub
from keepstep.wire.messages import Enrol, Hello, Message, NotLeader, Welcome


class Reception:
    """Meets connection.Hub, and passes everything on to the present role."""

    def __init__(self) -> None:
        self._role: Hub | None = None
        self._guests: dict[Connection, Hub] = {}
        self.may_answer: Callable[[], bool] = lambda: True
        """Whether the present role is certainly still its own; see server.replica."""

    def become(self, role: Hub | None) -> None:
        """From now on ``role`` answers; those whom another one let in are sent away."""
        self._role = role
        for connection, host in list(self._guests.items()):
            if host is not role:
                connection.close()

    def accept(self, connection: Connection, hello: Hello) -> Message:
        if self._role is None or not self.may_answer():
            return NotLeader()  # between two roles: whoever it is tries again, and is given no order of an old leader
        answer = self._role.accept(connection, hello)
        if isinstance(answer, Welcome):
            self._guests[connection] = self._role
        return answer

    def enrol(self, connection: Connection, message: Enrol) -> None:
        if self._role is None or not self.may_answer():
            connection.send(NotLeader())
        else:
            self._role.enrol(connection, message)

    def received(self, connection: Connection, message: Message) -> None:
        host = self._guests.get(connection)
        if host is not None and host is self._role:
            host.received(connection, message)

    def closed(self, connection: Connection) -> None:
        host = self._guests.pop(connection, None)
        if host is not None:
            host.closed(connection)
