"""The rule that makes one hang of the timeouts that many ranks report. Pure.

Who reports is a victim. Named are: ranks that others say never came, ranks whose own watchdog stands, ranks that had not
entered, and, where the size of the world is known, ranks that are silent. Numbers of two process groups are never compared:
where the lines do not tell the groups apart, nobody is named.
"""

from collections.abc import Mapping, Sequence

from keepstep.core import hangs
from keepstep.core.figures import whole
from keepstep.core.observation import Observation
from keepstep.core.signal import Context, Signal

_BLOCKED = 1.5
"""A timeout that was noticed only so many times its limit later: the watchdog itself was blocked."""
_LONGEST_LIST = 200
_RANK_DIGITS = 6


def one_hang(signals: Sequence[Signal], context: Context) -> list[Signal]:
    timeouts = [signal for signal in signals if signal.key == "job.collective_timeout"]
    others = [s for s in signals if s.key in ("job.watchdog_stuck", "job.desync")]
    if not timeouts and not others:
        return list(signals)
    if any(signal.key in ("job.hang", "job.hang.device") and "seq" in signal.seen.attributes for signal in signals):
        return [_told(signal, "the dumps of the ranks say more") for signal in signals]
    main = _largest(timeouts, _groups(signals))
    first = (main or others)[0]
    suspects, why = _suspects(main, signals)
    key = "job.hang" if suspects else "job.hang.unlocated"
    seen = _hang(first, key, main, (suspects, why))
    because = (
        (why,) if not _ambiguous(timeouts) else (why, "sequence numbers of several process groups are not compared")
    )
    kept = [signal if signal is first else _told(signal, "one of many reports of one hang") for signal in signals]
    return [*kept, Signal(seen=seen, row=context.catalog.row(key), because=because)]


def _told(signal: Signal, because: str) -> Signal:
    return signal.harmless(because) if signal.key == "job.collective_timeout" else signal


def _groups(signals: Sequence[Signal]) -> dict[tuple[str, str], str]:
    """(rank, number) -> process group, as the line beside the timeout says it."""
    found = {}
    for signal in signals:
        told = signal.seen.attributes
        if signal.key == "job.collective_progress" and "pg" in told:
            found[told.get("rank", ""), told.get("seq", "")] = told["pg"]
    return found


def _largest(timeouts: Sequence[Signal], groups: Mapping[tuple[str, str], str]) -> list[Signal]:
    """The timeouts of the collective that most ranks report."""
    parted: dict[tuple[str, ...], list[Signal]] = {}
    for signal in timeouts:
        told = signal.seen.attributes
        collective = tuple(told.get(name, "") for name in ("seq", "op", "numel", "library"))
        parted.setdefault(collective, []).append(signal)
    for key, found in list(parted.items()):
        by_group: dict[str, list[Signal]] = {}
        for signal in found:
            told = signal.seen.attributes
            group = told.get("pg") or groups.get((told.get("rank", ""), told.get("seq", "")), "")
            by_group.setdefault(group, []).append(signal)
        if len(by_group.keys() - {""}) > 1:
            del parted[key]
            parted |= {(*key, group): part for group, part in by_group.items()}
    return max(parted.values(), key=lambda found: (len(_ranks(found)), -timeouts.index(found[0])), default=[])


def _ambiguous(timeouts: Sequence[Signal]) -> bool:
    numbers = {signal.seen.attributes["seq"] for signal in timeouts if "seq" in signal.seen.attributes}
    return len(numbers) > 1


def _ranks(signals: Sequence[Signal]) -> set[int]:
    named = (signal.seen.attributes.get("rank", "") for signal in signals)
    return {number for rank in named if (number := whole(rank, _RANK_DIGITS)) is not None}


def _suspects(main: Sequence[Signal], signals: Sequence[Signal]) -> tuple[list[int], str]:
    named = [
        rank
        for signal in signals
        if signal.key == "job.desync"
        for rank in hangs.members(signal.seen.attributes.get("ranks", "").strip(","))
    ]
    reporters = _ranks(main)
    if named:
        return sorted(set(named)), "named by its peers as the one that lags"
    behind = _behind(main, signals)
    if behind and len(behind) <= len(reporters):
        return behind, "had not entered the collective that the others wait in"
    stuck = _ranks([signal for signal in signals if signal.key == "job.watchdog_stuck"])
    if stuck and (not reporters or len(stuck) * 2 <= len(reporters | stuck)):
        return sorted(stuck), "its watchdog stands still"
    silent = _silent(main, signals)
    if silent:
        return silent, "reports nothing while all others do"
    return [], "who reports is a victim; nobody is seen to be late"


def _behind(main: Sequence[Signal], signals: Sequence[Signal]) -> list[int]:
    """Within the group of the main timeout: whose newest entered number is below the one that the others wait in."""
    at, reporters = _figure(main[0].seen.attributes, "seq") if main else None, _ranks(main)
    if at is None:
        return []
    progress = [s.seen.attributes for s in signals if s.key == "job.collective_progress" and "pg" in s.seen.attributes]
    pgs = {told["pg"] for told in progress if _figure(told, "rank") in reporters}
    if len(pgs) != 1:
        return []
    late = {
        rank
        for told in progress
        if told["pg"] in pgs
        and (rank := _figure(told, "rank")) is not None
        and (entered := _figure(told, "enqueued")) is not None
        and entered < at
    }
    return sorted(late - reporters)


def _silent(main: Sequence[Signal], signals: Sequence[Signal]) -> list[int]:
    """Ranks of the job that say nothing of a timeout, where they are few. The highest rank that is heard of bounds the job."""
    if not main or any(signal.seen.attributes.get("library") for signal in main):
        return []
    timeouts = [s for s in signals if s.key == "job.collective_timeout"]
    if _ambiguous(timeouts):
        return []
    heard = _ranks(timeouts)
    known = _ranks([signal for signal in signals if signal.key.startswith("job.")]) | heard
    missing = [rank for rank in range(max(known, default=-1) + 1) if rank not in heard]
    return missing if len(missing) * 4 <= len(heard) or (len(missing) == 1 and len(heard) >= 2) else []


def _hang(first: Signal, key: str, main: Sequence[Signal], verdict: tuple[list[int], str]) -> Observation:
    suspects, why = verdict
    told = first.seen.attributes
    reporters = sorted(_ranks(main))
    attributes: dict[str, str] = {
        name: told[name] for name in ("seq", "op", "pg", "numel", "timeout_ms", "ran_ms") if name in told
    }
    attributes |= {
        "reporters": hangs.ranges(reporters)[:_LONGEST_LIST],
        "ranks": hangs.ranges(suspects)[:_LONGEST_LIST],
    }
    waiting = hangs.ranges(reporters)[:_LONGEST_LIST]
    text = f"{f'rank {waiting} waits' if waiting else 'ranks wait'} in {told.get('op', 'a collective')} and reports as a victim"
    if suspects:
        text += f"; suspected: rank {hangs.ranges(suspects)} ({why})"
    if _is_blocked(told):
        attributes["watchdog_blocked"] = "yes"
        text += f"; noticed after {told['ran_ms']} ms with a limit of {told['timeout_ms']} ms: the watchdog was blocked as well"
    part = f"rank/{suspects[0]}" if suspects else "job"
    seen = first.seen
    return Observation(
        signal=key, node="", part=part, detail=text[:500], attributes=attributes, source="combination", file=seen.file,
        line=seen.line, entry=seen.entry, at_s=seen.at_s, clock=seen.clock,
    )  # fmt: skip


def _is_blocked(told: Mapping[str, str]) -> bool:
    ran_ms, limit_ms = _figure(told, "ran_ms"), _figure(told, "timeout_ms")
    return ran_ms is not None and limit_ms is not None and 0 < _BLOCKED * limit_ms < ran_ms


def _figure(attributes: Mapping[str, str], name: str) -> int | None:
    return whole(attributes.get(name, ""))
