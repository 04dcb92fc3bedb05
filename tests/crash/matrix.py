"""Every fault at every boundary of a program: which cases there are, and what each must come to. Owns the crash matrix.

A *case* is a fault at a boundary (the program is run once per case), a state after a power cut (computed from one
recording), or both: a program that is killed, another process that goes on, and then a power cut.
"""

import errno
import hashlib
import re
import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct
from tests.crash.bench import Bench, Ran
from tests.crash.layer import KILLS, Fault, Kind, Op
from tests.crash.power import Disk, cut_names, cuts, points, read_tree
from tests.crash.programs import ALONE, TWO
from tests.crash.scenario import load
from tests.crash.trace import Call

FAMILIES = (*ALONE, *TWO)
EVERYTHING = 0
_POWER_STATES = 12
_SYNC_STATES = 2
_RESUME_STATES = 1
_RACE_STATES = 3
_MOST_RUNS = 600
"""Of pairs of faults, even if everything is wanted."""
_FLIPS = 3
_FROM_EACH = 5
"""Looks between two points from which on all fail: that is much like one that fails."""
_STATES_OF_A_RUN = 8
"""Of a run that gives many states, so many are looked at if there is a budget."""


class Order(Struct, frozen=True, kw_only=True):
    """What is to be done."""

    scenario: str
    families: tuple[str, ...] = FAMILIES
    budget: int = EVERYTHING
    """About so many cases of each family, chosen by a hash of their names, so always the same ones."""
    shard: int = 0
    shards: int = 1
    only: str = ""
    """Run only cases whose name contains this."""
    deadline_s: float = 120.0
    """A program or a check that takes longer hangs."""


class Finding(Struct, frozen=True):
    """A case that came to something that must not be."""

    case: str
    where: str
    why: str
    told: list[str]

    def cause(self) -> str:
        """The family and the last line of the reason without what differs from case to case: to sort findings by."""
        last = self.why.strip().splitlines()[-1]
        return f"{self.case.split(', ')[1]}: {re.sub(r'[0-9a-f]*[0-9][0-9a-f]*', '#', last)}"


class Report(Struct):
    """What was done and found."""

    scenario: str
    changes: int = 0
    looks: int = 0
    cases: dict[str, int] = {}
    struck: dict[str, int] = {}
    """Cases in which the fault really struck, by family."""
    findings: list[Finding] = []

    def add(self, other: "Report") -> None:
        self.changes, self.looks = max(self.changes, other.changes), max(self.looks, other.looks)
        for mine, theirs in ((self.cases, other.cases), (self.struck, other.struck)):
            for family, number in theirs.items():
                mine[family] = mine.get(family, 0) + number
        self.findings += other.findings


class Matrix:
    """One program through its cases."""

    def __init__(self, order: Order, scratch: Path) -> None:
        self._order = order
        self._bench = Bench(load(order.scenario), scratch, order.deadline_s)
        self.report = Report(order.scenario)
        self._calls = self._record()
        self.report.changes = sum(not call.looks and call.op is not Op.MARK for call in self._calls)
        self.report.looks = sum(call.looks for call in self._calls)

    def _record(self) -> list[Call]:
        """The calls of a run without a fault. Done again on the model they must give what is there."""
        self._bench.reset()
        disk, self._recorded = Disk(self._bench.work), Disk(self._bench.work)
        ran = self._bench.run(Fault(), record=True)
        if not ran.ended.passed:
            raise AssertionError(f"without a fault, the program {ran.ended.how}:\n{ran.ended.said}")
        for call in self._bench.calls():
            disk.apply(call)
        if disk.seen() != read_tree(self._bench.work):
            raise AssertionError(
                "the program changes files past the fault layer: the trace does not give what is there"
            )
        if not self._bench.check(ran.told).passed:
            raise AssertionError(f"the oracle is not content without a fault:\n{self._bench.check(ran.told).said}")
        return self._bench.calls()

    def go(self) -> Report:
        """All cases of the order."""
        for family in self._order.families:
            if family == "power":
                self._power()
            elif family == "sync":
                self._failed_syncs()
            elif family == "resume":
                self._resumed()
            elif family == "pause":
                self._paused()
            elif family == "race":
                self._raced()
            else:
                self._faults(family)
        return self.report

    def _chosen(self, names: list[str], budget: int) -> Collection[str]:
        """The cases that are run: those asked for by name, or all, or ``budget`` of them."""
        if self._order.only:
            return {name for name in names if self._order.only in name}
        return names if self._order.budget == EVERYTHING else set(sorted(names, key=_draw)[:budget])

    def _is_mine(self, name: str) -> bool:
        return int(_draw(f"shard of {name}") * self._order.shards) == self._order.shard

    def _count(self, family: str, *, struck: bool = True) -> None:
        self.report.cases[family] = self.report.cases.get(family, 0) + 1
        self.report.struck[family] = self.report.struck.get(family, 0) + struck

    def _find(self, case: str, where: str, why: str, told: list[str]) -> None:
        self.report.findings.append(Finding(case, where, why, told))

    # ---- a fault, then the oracle

    def _faults(self, family: str) -> None:
        cases = {
            f"{self._order.scenario}, {family}, {fault}{', stopped' if stop else ''}": (fault, call, stop)
            for fault, call in faults(family, self._calls)
            for stop in ((False,) if fault.kind in KILLS else (False, True))
        }
        chosen = self._chosen(list(cases), self._order.budget)
        for name, (fault, call, stop) in cases.items():
            if name in chosen and self._is_mine(name):
                self._fault(family, name, fault, call, stop=stop)

    def _fault(self, family: str, name: str, fault: Fault, call: Call | None, *, stop: bool) -> None:
        self._bench.reset()
        ran = self._bench.run(fault, stop=stop)
        self._count(family, struck=bool(ran.struck))
        where = ran.struck or (str(call) if call else "everywhere")
        if self._survived(name, where, ran, may_be_killed=stop or fault.kind in KILLS):
            self._judge(name, where, ran.told)

    def _survived(self, name: str, where: str, ran: Ran, *, may_be_killed: bool = False) -> bool:
        fine = ran.ended.passed or (may_be_killed and ran.ended.how == "killed")
        if not fine:
            self._find(name, where, f"the program {ran.ended.how}:\n{ran.ended.said}", ran.told)
        return fine

    def _judge(self, name: str, where: str, told: list[str]) -> None:
        ended = self._bench.check(told)
        if not ended.passed:
            self._find(name, where, f"the check {ended.how}:\n{ended.said}", told)

    # ---- power cuts

    def _power(self) -> None:
        where = _Points(self._calls, points(self._calls), _POWER_STATES)
        self._cut("power", f"{self._order.scenario}, power", self._recorded, where)

    def _cut(self, family: str, name: str, disk: Disk, where: "_Points") -> None:
        """The states after a recording. Those of one run are not shared out; those of the recording of all are."""
        prefix, shared = f"{name}, ", family == "power"
        names = [prefix + cut for cut in cut_names(where.points, where.states)]
        chosen = self._chosen(names, self._order.budget if shared else _STATES_OF_A_RUN)
        everything = chosen is names

        def wanted(cut: str) -> bool:
            case = prefix + cut
            return (not shared or self._is_mine(case)) and (everything or case in chosen or case == self._order.only)

        for cut in cuts(disk, where.calls, where.points, where.states, wanted):
            self._count(family)
            self._bench.put(cut.tree)
            self._judge(prefix + cut.name, f"after {cut.call}", cut.told)

    def _failed_syncs(self) -> None:
        """A sync that fails once: what was not on the disk then never will be, whatever is tried."""
        calls = [call for call in self._calls if call.op in (Op.SYNC, Op.DATASYNC)]
        for (fault,), name in self._runs("sync", [(Fault(Kind.ERROR_ONCE, call.number, errno.EIO),) for call in calls]):
            self._bench.reset()
            disk = Disk(self._bench.work)
            ran = self._bench.run(fault, record=True)
            if self._survived(name, ran.struck, ran):
                calls = self._bench.calls()
                self._cut("sync", name, disk, _Points(calls, points(calls), _SYNC_STATES))

    def _resumed(self) -> None:
        """Killed; another process finds what was not synced yet, and relies on it; then the power is cut."""
        calls = [call for call in self._calls if not call.looks and call.op is not Op.MARK]
        for (fault,), name in self._runs("resume", [(Fault(Kind.KILL_AFTER, call.number),) for call in calls]):
            self._bench.reset()
            disk = Disk(self._bench.work)
            first = self._bench.run(fault, record=True)
            before = len(self._bench.calls())
            second = self._bench.resume()
            if self._survived(name, first.struck, second):
                calls = self._bench.calls()
                self._cut("resume", name, disk, _Points(calls, points(calls, before), _RESUME_STATES))

    # ---- two at once

    def _pauses(self) -> list[Fault]:
        kinds = {False: Kind.PAUSE, True: Kind.READ_PAUSE}
        return [Fault(kinds[call.looks], call.number) for call in self._calls if call.op is not Op.MARK]

    def _paused(self) -> None:
        """The program stands still anywhere, and another one does its work meanwhile."""
        names = {f"{self._order.scenario}, pause, {fault}": fault for fault in self._pauses()}
        chosen = self._chosen(list(names), self._order.budget)
        for name, fault in names.items():
            if name in chosen and self._is_mine(name):
                self._bench.reset()
                first, second = self._bench.pause(fault, Fault())
                self._count("pause", struck=bool(first.struck))
                if self._survived(name, first.struck, second) and self._survived(name, first.struck, first):
                    self._judge(name, first.struck, first.told)

    def _raced(self) -> None:
        """The program stands still before it looks; the other one makes a name, and is killed before it can sync it. What
        is said after that must hold when the power is cut."""
        looks = [Fault(Kind.READ_PAUSE, call.number) for call in self._calls if call.op in (Op.OPEN, Op.LIST, Op.STAT)]
        made: set[int] = set()
        for fault in (looks[0], looks[-1]):
            # What the other one does depends on how far this one has come.
            self._bench.reset()
            self._bench.pause(fault, Fault())
            made |= {call.number for call in self._bench.other_calls if call.op in (Op.LINK, Op.RENAME, Op.MKDIR)}
        pairs = [(fault, Fault(Kind.KILL_AFTER, number)) for fault in looks for number in sorted(made)]
        for (fault, end), name in self._runs("race", pairs):
            self._bench.reset()
            disk = Disk(self._bench.work)
            first, second = self._bench.pause(fault, end)
            fine = self._survived(name, first.struck, second, may_be_killed=True)
            if fine and self._survived(name, first.struck, first):
                calls = self._bench.calls()
                said = [number for number, call in enumerate(calls, 1) if call.op is Op.MARK]
                self._cut("race", name, disk, _Points(calls, said, _RACE_STATES))

    def _runs(self, family: str, faults: Sequence[tuple[Fault, ...]]) -> Iterator[tuple[tuple[Fault, ...], str]]:
        """Those whose states are looked at."""
        names = {f"{self._order.scenario}, {family}, {' + '.join(map(str, some))}": some for some in faults}
        budget = -(-self._order.budget // _STATES_OF_A_RUN) or _MOST_RUNS
        if self._order.only:
            chosen: Collection[str] = {name for name in names if self._order.only.startswith(name)}
        else:
            chosen = set(sorted(names, key=_draw)[:budget])
        for name, some in names.items():
            if name in chosen and self._is_mine(name):
                yield some, name


class _Points(NamedTuple):
    """Where a recording is cut."""

    calls: list[Call]
    points: list[int]
    states: int


def _draw(name: str) -> float:
    """Between 0 and 1, always the same for a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "big") / 2**32


def faults(family: str, calls: list[Call]) -> Iterator[tuple[Fault, Call | None]]:
    """The faults of a family for a program that makes these calls."""
    changes = [call for call in calls if not call.looks and call.op is not Op.MARK]
    looks = [call for call in calls if call.looks]
    if family == "kill":
        yield from ((Fault(Kind.KILL_BEFORE, call.number), call) for call in changes)
        yield from ((Fault(Kind.KILL_TORN, call.number), call) for call in changes if call.op is Op.WRITE)
        yield Fault(Kind.KILL_AFTER, changes[-1].number), changes[-1]
    elif family == "space":
        for error in (errno.ENOSPC, errno.EDQUOT):
            yield from ((Fault(Kind.ERROR_ONCE, call.number, error), call) for call in changes)
        yield from ((Fault(Kind.ERROR_FROM, call.number, errno.ENOSPC), call) for call in changes)
    elif family == "error":
        yield from ((Fault(Kind.ERROR_ONCE, call.number, errno.EIO), call) for call in changes)
        for error in (errno.EIO, errno.EROFS):
            yield from ((Fault(Kind.ERROR_FROM, call.number, error), call) for call in changes)
    elif family == "lost answer":
        yield from ((Fault(Kind.ERROR_AFTER, call.number, errno.EIO), call) for call in changes)
    elif family == "short":
        yield Fault(Kind.SHORT_ALL), None
        yield Fault(Kind.READ_SHORT_ALL), None
        yield from ((Fault(Kind.SHORT_ONCE, call.number), call) for call in changes if call.op is Op.WRITE)
        yield from ((Fault(Kind.READ_SHORT, call.number), call) for call in looks if call.op is Op.READ)
    elif family == "look":
        yield from ((Fault(Kind.READ_ERROR, call.number, errno.EIO), call) for call in looks)
        yield from ((Fault(Kind.READ_ERROR, call.number, errno.EMFILE), call) for call in looks if call.op is Op.OPEN)
        yield from ((Fault(Kind.READ_ERROR_FROM, call.number, errno.EIO), call) for call in looks[::_FROM_EACH])
        yield from ((Fault(Kind.READ_END, call.number), call) for call in looks if call.op is Op.READ)
    elif family == "flip":
        reads = [call for call in looks if call.op is Op.READ and call.length > 0]
        yield from ((Fault(Kind.READ_FLIP, call.number, seed + 1), call) for seed in range(_FLIPS) for call in reads)
    else:
        raise ValueError(f"{family!r} is none of {FAMILIES}")


def examine(order: Order, scratch: Path) -> Report:
    """Carry out an order in this process, which has the fault layer preloaded; nothing is left in ``scratch``."""
    try:
        return Matrix(order, scratch).go()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
