"""Our own kills and aborts: what they print is no fault. Pure."""

from collections.abc import Sequence

from keepstep.core.catalog.row import Verdict
from keepstep.core.incident import Urgency
from keepstep.core.signal import Context, Rule, Signal

SELF_INFLICTED = ("xid.13", "xid.31", "xid.43", "xid.45", "xid.94", "xid.137", "sxid.12028", "sxid.22013", "sxid.24007")
"""What an abort in the middle of a collective was seen to print, and what the end of a process always may."""


def _older_than_the_agent(signals: Sequence[Signal], context: Context) -> list[Signal]:
    return [
        signal.graded(
            "from before its agent started: history", verdict=Verdict.WATCH, isolate=False, urgency=Urgency.NONE
        )
        if signal.seen.attributes.get("old") and signal.row.verdict in (Verdict.SUSPECT, Verdict.FAULTY)
        else signal
        for signal in signals
    ]


def _own_actions(signals: Sequence[Signal], context: Context) -> list[Signal]:
    return [_judged(signal, context) for signal in signals]


def _judged(signal: Signal, context: Context) -> Signal:
    seen = signal.seen
    if seen.signal not in SELF_INFLICTED or seen.at_s is None:
        return signal
    for action in context.own_actions:
        if action.node == seen.node and action.clock == seen.clock and action.from_s <= seen.at_s <= action.until_s:
            return signal.harmless(f"printed by our own act: {action.what}")
    return signal


RULES = (
    Rule(
        name="older_than_the_agent",
        text="What the kernel had printed before the agent started is history: recorded, never acted on.",
        apply=_older_than_the_agent,
    ),
    Rule(
        name="own_actions",
        text="Codes that a kill or an abort of ours prints within its window are no fault.",
        apply=_own_actions,
    ),
)
