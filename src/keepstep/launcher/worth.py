"""What a launcher gives up first where the server was away for so long that its spool is full. Pure."""

from keepstep.core.facts import CheckpointCommitted, CheckpointFailed, Fact, GateFinished, NodeJoined, SignalSeen

_CAN_BE_LEARNED_AGAIN = (NodeJoined, CheckpointCommitted, CheckpointFailed, SignalSeen, GateFinished)
"""Inventories and later reports repeat what these say. The end of a rank, and an answer, come once only."""


def worth(fact: Fact) -> int:
    return 0 if isinstance(fact, _CAN_BE_LEARNED_AGAIN) else 1
