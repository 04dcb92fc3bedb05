"""Combination rules of what controllers say: what is over, what is history, what is one event. Pure.

A controller tells of an event once and holds on to it for years; its clock may be wrong, so ages are measured on that clock
alone, and the order within one log counts for more than any time.
"""

from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from keepstep.core.catalog.row import Row, Scope, Verdict
from keepstep.core.incident import Urgency
from keepstep.core.observation import Observation, kind_of, name_of
from keepstep.core.signal import Context, Rule, Signal, place_of

SOURCES = ("redfish", "ipmi")
BURST_S = 30.0
"""Components that lose power within this time lose it together."""
SWITCHING_S = 900.0
"""How long around a change of the power state sensors read nonsense."""
BEFORE_SWITCH_S = 60.0
RECENT_S = 24 * 3600.0
"""A log entry older than this, on the controller's own clock, is history."""
GROUP_MIN = 3
STORM_MIN = 8
OPEN_MAX = 200
"""Conditions of one log that are looked at when another one ends."""
POWER = ("bmc.power.component", "bmc.gpu.power")
MEASURED = (
    *POWER,
    "bmc.voltage.critical",
    "bmc.temperature.critical",
    "bmc.gpu.thermal",
    "bmc.fan.failed",
    "bmc.psu.failed",
)
"""What a sensor may say wrongly while power is switched."""
LEAKS = ("bmc.leak", "bmc.leak.cabinet", "bmc.leak.warning")
SUMMARIES = ("bmc.rollup.critical", "bmc.rollup.warning", "bmc.storage.degraded", "bmc.part.critical")
WELL_MIN = 2
"""Parts that are looked at and well, beside which a critical summary says nothing about now."""
DRIVES = ("bmc.drive.failed", "bmc.drive.predicted")
SUPPLIES = ("bmc.psu.failed", "bmc.psu.input_lost")
SUPPLIES_MIN = 2
_BAD = (Verdict.SUSPECT, Verdict.FAULTY)


def _attribute(signal: Signal, name: str) -> str:
    return signal.seen.attributes.get(name, "")


def _ours(signal: Signal) -> bool:
    return signal.seen.source in SOURCES


def _changed(signals: Sequence[Signal], changes: dict[int, Signal]) -> list[Signal]:
    return [changes.get(at, signal) for at, signal in enumerate(signals)]


def _watched(signal: Signal, because: str) -> Signal:
    """Kept as history: nothing is isolated for it."""
    if signal.row.verdict is Verdict.BENIGN:
        return signal
    return signal.graded(because, verdict=Verdict.WATCH, isolate=False, urgency=Urgency.NONE,
                         confidence=min(signal.row.confidence, 0.4))  # fmt: skip


def _cleared(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Earlier conditions of the same log that a later entry ends."""
    changes: dict[int, Signal] = {}
    open_: dict[tuple[str, str, str], list[int]] = {}
    for at, signal in enumerate(signals):
        if not _ours(signal):
            continue
        scope = (signal.seen.node, signal.seen.file, _attribute(signal, "log"))
        if signal.key == "bmc.cleared":
            waiting = open_.get(scope, [])
            ended = [other for other in waiting if _ends(signal, signals[other])]
            for other in ended:
                changes[other] = _over(signals[other])
            open_[scope] = [other for other in waiting if other not in changes][-OPEN_MAX:]
        elif _attribute(signal, "lasts"):
            waiting = open_.setdefault(scope, [])
            waiting.append(at)
            del waiting[:-OPEN_MAX]
    return _changed(signals, changes)


def _ends(end: Signal, begun: Signal) -> bool:
    a, b = end.seen, begun.seen
    what = a.attributes.get("ends", "")
    same_part = a.part == b.part
    if what == b.signal and same_part and _shared(a, b):
        return True
    if what not in ("", "bmc.cleared", b.signal) and what.split(".")[:2] != b.signal.split(".")[:2]:
        return False
    if what in ("", "bmc.cleared") and same_part and a.part:
        return True  # "power supply 1 is operating normally" ends all that was said of it
    words = set(a.attributes.get("subject", "").split())
    subject = set(b.attributes.get("subject", "").split())
    return bool(words) and words <= subject and (same_part or not a.part)


def _shared(a: Observation, b: Observation) -> bool:
    """About the same sensor: either names none, or their subjects share a word."""
    if a.part and a.part == b.part:
        return True
    if a.signal == "bmc.cleared" and b.signal in LEAKS:
        return True
    words, subject = set(a.attributes.get("subject", "").split()), set(b.attributes.get("subject", "").split())
    return bool(words & subject) or not words or not subject


def _over(signal: Signal) -> Signal:
    if signal.key in LEAKS:
        return signal.graded("the detector reads dry again: what leaked must still be found", verdict=Verdict.SUSPECT,
                             isolate=False, urgency=Urgency.NONE, confidence=0.5)  # fmt: skip
    return signal.harmless("the same log says later that it is over")


def _power_event(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Several components outside their power limits at once: one event of the node, and a transient where power switched."""
    derived: list[Signal] = []
    changes: dict[int, Signal] = {}
    switched = _switching(signals)
    for group in _bursts(
        [(at, s) for at, s in enumerate(signals) if _ours(s) and s.key in POWER and s.row.verdict in _BAD]
    ):
        parts = sorted({signals[at].seen.part or _attribute(signals[at], "subject") for at in group})
        if len(parts) < GROUP_MIN:
            continue
        for at in group:
            changes[at] = signals[at].harmless(f"one of {len(parts)} components that lost power together")
        derived.append(
            _derived("bmc.power.event", signals[group[0]], f"power of {', '.join(parts[:8])} at once", context)
        )
    kept = _changed(signals, changes)
    for at, signal in enumerate(kept):
        if _ours(signal) and signal.key in MEASURED and signal.row.verdict in _BAD and _near(signal.seen, switched):
            kept[at] = _watched(signal, "the power state changed around it: a transient of switching")
    return kept + [
        _watched(signal, "the power state changed around it: a transient of switching")
        if _near(signal.seen, switched)
        else signal
        for signal in derived
    ]


def _several_supplies(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Supplies of one node that fail or lose their input together, or are seen without power at one look, share a feed."""
    changes: dict[int, Signal] = {}
    derived: list[Signal] = []
    bad = [(at, s) for at, s in enumerate(signals) if _ours(s) and s.key in SUPPLIES and s.row.verdict in _BAD]
    states: dict[tuple[str, str], list[int]] = {}
    for at, signal in bad:
        if signal.seen.at_s is None:
            states.setdefault((signal.seen.node, signal.seen.file), []).append(at)
    groups = [*states.values(), *_bursts([(at, s) for at, s in bad if s.seen.at_s is not None])]
    for group in groups:
        names = sorted({signals[at].seen.part for at in group})
        if len(names) < SUPPLIES_MIN:
            continue
        for at in group:
            changes[at] = signals[at].harmless(f"one of {len(names)} supplies that failed together")
        text = f"{', '.join(names[:8])} failed or lost their input together"
        derived.append(_derived("bmc.psu.several", signals[group[0]], text, context))
    return _changed(signals, changes) + derived


def _switching(signals: Sequence[Signal]) -> dict[tuple[str, str, str], list[float]]:
    """(node, clock, file) -> when the power state changed, in order."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for signal in signals:
        seen = signal.seen
        if _ours(signal) and signal.key in ("bmc.power.state", "bmc.boot") and seen.at_s is not None:
            found.setdefault((seen.node, seen.clock, seen.file), []).append(seen.at_s)
    return {scope: sorted(times) for scope, times in found.items()}


def _near(seen: Observation, switched: dict[tuple[str, str, str], list[float]]) -> bool:
    times = switched.get((seen.node, seen.clock, seen.file))
    if seen.at_s is None or not times:
        return False
    at = bisect_left(times, seen.at_s - SWITCHING_S)
    return at < len(times) and times[at] <= seen.at_s + BEFORE_SWITCH_S


def _bursts(timed: list[tuple[int, Signal]]) -> list[list[int]]:
    """Indices of signals of one node and clock, in runs whose members follow each other closely."""
    runs: dict[tuple[str, str, str], list[list[int]]] = {}
    last: dict[tuple[str, str, str], float] = {}
    order = sorted(timed, key=lambda pair: (pair[1].seen.at_s is None, pair[1].seen.at_s or 0.0))
    for at, signal in order:
        scope = (signal.seen.node, signal.seen.clock, signal.seen.file)
        when = signal.seen.at_s
        found = runs.setdefault(scope, [])
        if when is None:
            found.append([at])
        elif found and when - last.get(scope, float("-inf")) <= BURST_S:
            found[-1].append(at)
        else:
            found.append([at])
        if when is not None:
            last[scope] = when
    return [run for groups in runs.values() for run in groups]


def _link_storm(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Many links of one switch that go down within minutes are one event of the switch, not that many bad links."""
    changes: dict[int, Signal] = {}
    derived: list[Signal] = []
    flaps = [
        (at, s)
        for at, s in enumerate(signals)
        if _ours(s) and s.key == "bmc.nic.link" and s.row.verdict is not Verdict.BENIGN
    ]
    for group in _bursts([(at, s) for at, s in flaps if s.seen.at_s is not None]):
        links = sorted({signals[at].seen.part or _attribute(signals[at], "subject") for at in group})
        if len(links) < STORM_MIN:
            continue
        for at in group:
            changes[at] = signals[at].harmless(f"one of {len(links)} links that went down together")
        derived.append(
            _derived("bmc.link.storm", signals[group[0]], f"{len(links)} links went down within a minute", context)
        )
    return _changed(signals, changes) + derived


def _history(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """What a log or a latch has kept, where the part is well now or the entry is old on the controller's own clock."""
    now: dict[str, float] = {}
    for signal in signals:
        if signal.key == "bmc.clock" and signal.seen.at_s is not None:
            now[signal.seen.node] = max(signal.seen.at_s, now.get(signal.seen.node, signal.seen.at_s))
    well = {place_of(signal, context) for signal in signals if signal.key == "bmc.part.ok"}
    changes: dict[int, Signal] = {}
    for at, signal in enumerate(signals):
        seen = signal.seen
        if not _ours(signal) or _attribute(signal, "record") != "log" or signal.row.verdict not in _BAD:
            continue
        age = now[seen.node] - seen.at_s if seen.node in now and seen.at_s is not None and seen.clock == "bmc" else None
        if age is not None and age > RECENT_S:
            changes[at] = _watched(signal, f"history: {age / 86400:.0f} days old on the controller's own clock")
        elif signal.key.startswith("sxid.") and _attribute(signal, "severity") == "nonfatal":
            changes[at] = _watched(signal, "the driver itself calls it non-fatal")
        elif seen.clock == "bmc:unset":
            changes[at] = _watched(signal, "from before the controller's clock was set: nobody knows when")
        elif age is None and seen.part and place_of(signal, context) in well:
            changes[at] = _watched(signal, "the controller says that the part is well now: a kept record of the past")
        elif age is None and _attribute(signal, "latched"):
            changes[at] = _watched(signal, "a latched condition: it says nothing about now")
    return _changed(signals, changes)


def _common_cards(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The same error on several cards of one node, as its controller tells: one thing that they share."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for at, signal in enumerate(signals):
        gpu = kind_of(signal.seen.part) == "gpu" and signal.row.verdict is not Verdict.BENIGN
        if _ours(signal) and gpu and signal.key.startswith(("xid.", "bmc.gpu.")) and signal.key != "bmc.gpu.common":
            groups.setdefault((signal.seen.node, signal.seen.file, signal.key), []).append(at)
    changes: dict[int, Signal] = {}
    derived: list[Signal] = []
    for (_, _, key), members in sorted(groups.items()):
        cards = sorted({signals[at].seen.part for at in members})
        if len(cards) < GROUP_MIN:
            continue
        text = f"{key} on {len(cards)} cards: {', '.join(map(name_of, cards))}"
        common = _derived("bmc.gpu.common", signals[members[0]], text, context)
        present = any(signals[at].row.verdict in _BAD for at in members)
        derived.append(common if present else _watched(common, "history of all of them"))
        for at in members:
            if signals[at].row.verdict in _BAD:
                sure = min(signals[at].row.confidence, common.row.confidence - 0.1)
                changes[at] = signals[at].graded(
                    f"one of {len(cards)} cards with the same error: a common cause", scope=Scope.NODE, verdict=Verdict.SUSPECT,
                    isolate=False, urgency=common.row.urgency, confidence=sure,
                    cause=common.row.cause, remedy=common.row.remedy,
                )  # fmt: skip
    return _changed(signals, changes) + derived


def _summaries(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A summary says no more than the parts that it sums up; one that nothing bears out is latched."""
    changes: dict[int, Signal] = {}
    parts: dict[str, list[Signal]] = {}
    for signal in signals:
        if _ours(signal) and signal.key not in ("bmc.rollup.critical", "bmc.rollup.warning"):
            parts.setdefault(signal.seen.node, []).append(signal)
    told = {node: _told(some) for node, some in parts.items()}
    well = {node: sum(signal.key == "bmc.part.ok" for signal in some) for node, some in parts.items()}
    failed: dict[str, list[str]] = {}
    for signal in signals:
        if (
            _ours(signal)
            and signal.key in DRIVES
            and _attribute(signal, "record") == "state"
            and signal.row.verdict in _BAD
        ):
            failed.setdefault(signal.seen.node, []).append(signal.seen.part)
    for at, signal in enumerate(signals):
        if not _ours(signal) or signal.row.verdict not in _BAD:
            continue
        if signal.key in DRIVES and _attribute(signal, "record") == "log" and signal.seen.node in failed:
            if signal.seen.part not in failed[signal.seen.node]:
                changes[at] = _watched(
                    signal, f"told by the state of the drive {failed[signal.seen.node][0].split('/')[-1]}"
                )
            continue
        if signal.key not in SUMMARIES:
            continue
        drive, bad, history = told.get(signal.seen.node, (None, None, False))
        if signal.key == "bmc.storage.degraded":
            if drive is not None:
                changes[at] = _watched(signal, f"sums up the drive {name_of(drive.seen.part)}")
        elif bad is not None and bad is not signal:
            changes[at] = _watched(signal, f"sums up what is told apart: {bad.key} {bad.seen.part}".rstrip())
        elif signal.key.startswith("bmc.rollup.") and well.get(signal.seen.node, 0) >= WELL_MIN:
            changes[at] = _watched(
                signal, "every part that was looked at is well: what it sums up is history, or is not here"
            )
        elif history or _attribute(signal, "record") == "latched":
            changes[at] = _watched(signal, "latched: no part is in a bad state now, what it held on to is history")
    return _changed(signals, changes)


def _told(signals: list[Signal]) -> tuple[Signal | None, Signal | None, bool]:
    """(a bad drive, any bad part with parts of a kind first, whether there is only history) of one node."""
    bad = [signal for signal in signals if signal.row.verdict in _BAD]
    drive = next((signal for signal in bad if signal.key in DRIVES), None)
    apart = next((signal for signal in bad if signal.key not in SUMMARIES), None)
    stored = next((signal for signal in bad if signal.key == "bmc.storage.degraded"), None)
    history = any(_attribute(s, "record") == "log" and s.row.verdict is Verdict.WATCH for s in signals)
    return drive, apart or stored, history


def _derived(key: str, like: Signal, detail: str, context: Context) -> Signal:
    row: Row = context.catalog.row(key)
    seen = msgspec.structs.replace(
        like.seen, signal=key, part="", detail=detail, count=1,
        attributes={"record": "derived", "log": _attribute(like, "log")},
    )  # fmt: skip
    return Signal(seen=seen, row=row, because=("several signals joined",))


RULES: tuple[Rule, ...] = (
    Rule(name="bmc_cleared", text="A condition that the same log ends later is over.", apply=_cleared),
    Rule(
        name="bmc_power_event",
        text="Components that lose power within seconds are one event; readings around a power switch are transients.",
        apply=_power_event,
    ),
    Rule(name="bmc_supplies", text="Supplies that fail together are one event of what feeds them.", apply=_several_supplies),
    Rule(name="bmc_link_storm", text="Many links of one controller that go down together are one event.", apply=_link_storm),
    Rule(
        name="bmc_history",
        text="A kept record of a part that is well now, or an old one on the controller's own clock, is history.",
        apply=_history,
    ),
    Rule(
        name="bmc_common_cards",
        text="The same error on three or more cards in one controller's log has a common cause.",
        apply=_common_cards,
    ),
    Rule(name="bmc_summaries", text="A roll-up says no more than its parts; one that nothing bears out is latched.",
         apply=_summaries),
)  # fmt: skip
