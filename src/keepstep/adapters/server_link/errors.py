"""What a server's no, and its silence, are called on this side."""


class ServerRefused(RuntimeError):
    """The server answered, and said no. Says why."""


class ServerGone(ConnectionError):
    """Nothing answers at the address, or the connection broke."""


class Forbidden(ServerRefused):
    """Not to you."""


class UnknownSubject(ServerRefused):
    """There is no such job, incident, resource …"""


class Conflict(ServerRefused):
    """It is not so that this could be done."""


class KeyReused(ServerRefused):
    """The idempotency key was used for another request."""


class NoLeader(ServerRefused):
    """Nobody leads now; it may be tried again."""
