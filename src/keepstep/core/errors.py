"""What can go wrong inside the core. Only our own bugs: wrong input is refused at the edge, stale facts are data."""


class InvariantBroken(AssertionError):
    """The engine was about to break one of its invariants. Crash, restart from the journal, keep the job as it is."""


class IllegalMove(InvariantBroken):
    """A state machine was asked for a move that its table does not have."""
