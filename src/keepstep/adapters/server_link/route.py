"""Which of several servers is dialled next. Owns the turn among addresses and how often a hint is followed; dials nothing."""

from collections.abc import Sequence

from keepstep.adapters.server_link.address import Address, parse_address

HOPS_MAX = 4
"""Servers that send us to each other in a ring are left after so many hops."""


class Route:
    """Ask ``next`` whom to dial, then say how it went: ``arrived``, ``failed`` or ``sent_on``."""

    def __init__(self) -> None:
        self._turn = 0
        self._tried = 0
        self._hops = 0
        self._hint: Address | None = None

    def next(self, known: Sequence[Address]) -> Address:
        """The leader that we were told of, else whoever's turn it is. ``known`` is not empty and may differ each time."""
        if self._hint is not None:
            return self._hint
        return known[self._turn % len(known)]

    def arrived(self) -> None:
        """It took us. When it is lost, it is also the first to be asked again."""
        self._tried = self._hops = 0

    def failed(self, known: Sequence[Address]) -> bool:
        """Whether every server was tried in vain since the last pause: now it is time for one."""
        if self._hint is not None:
            # Whoever gave the hint has been asked already; its successor in turn is next.
            self._hint = None
        self._turn += 1
        self._tried += 1
        if self._tried < len(known):
            return False
        self._tried = self._hops = 0
        return True

    def sent_on(self, leader: str, by: Address) -> bool:
        """By a server that follows. False where the hint leads nowhere: none, no address, or out of TLS into the clear."""
        self._hops += 1
        try:
            hint = parse_address(leader, "the leader's address")
        except ValueError:
            return False
        if self._hops > HOPS_MAX or hint == by or (by.tls and not hint.tls):
            return False
        self._hint = hint
        return True
