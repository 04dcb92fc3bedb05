"""Combination rules of the machine: crashes, memory, services, storage. Pure.

What belongs to the PCI bus and to links stands in ``bus.py``.
"""

import re
from collections.abc import Sequence

import msgspec

from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.combine import bus
from keepstep.core.combine.nearness import MAX_COMPARED, Nearby, Place, by_boot, follows, near, place
from keepstep.core.incident import Cause, Urgency
from keepstep.core.observation import kind_of, name_of
from keepstep.core.signal import Context, Rule, Signal, within

STACK_LINES = 200
"""A call trace, with those of other tasks in between, is not longer."""
STACK_S = 600.0
OWN_STACK_LINES = 40
OWN_STACK_S = 5.0
OOM_LINES = 400
"""The memory killer prints a table of all processes between its first and its last line."""
OOM_S = 60.0
SECTION_LINES = 20
DISKS_S = 60.0
MANY_DISKS = 3
ENDING_S = 300.0
TRAINERS = (
    "python",
    "pt_main_thread",
    "pt_data_worker",
    "torchrun",
    "deepspeed",
    "accelerate",
    "train",
    "ray::",
    "mpirun",
    "srun",
)
"""How a rank's process calls itself: the kernel knows only the first fifteen characters of its name."""

_ORDER = ("host.oom.cgroup", "host.oom.global", "host.oom.killed")
_KILLED_RANKS = ("job.exit.sigkill", "job.error.dataloader_killed")
_NOTES = ("host.oom.note", "host.oom.limit")
_SECTIONS = ("host.cper.section", "host.cper.device")
_STUCK = ("host.soft_lockup", "host.rcu_stall")
_BAD = (Verdict.SUSPECT, Verdict.FAULTY)


def one_oom(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """One kill is one signal, the most exact one: the killer says the same victim in two or three lines."""
    kills = [signal for signal in signals if signal.key in _ORDER]
    if not kills:
        return list(signals)
    by_victim: dict[tuple[str, str], list[Signal]] = {}
    for kill in kills:
        by_victim.setdefault((kill.seen.node, kill.seen.part), []).append(kill)
    notes = Nearby([x for x in signals if x.key == "host.oom.limit"])
    killed = Nearby(kills)
    kept: list[Signal] = []
    for signal in signals:
        if signal.key in _ORDER:
            if not _said_better(signal, by_victim[signal.seen.node, signal.seen.part]):
                kept.append(_with_limit(signal, notes.around(signal, OOM_LINES), context))
        elif signal.key not in _NOTES or not any(
            near(signal, x, OOM_LINES, OOM_S) for x in killed.around(signal, OOM_LINES)
        ):
            kept.append(signal)
    return kept


def _said_better(signal: Signal, others: Sequence[Signal]) -> bool:
    """Whether another line about the same victim says more, or says it first."""
    if not signal.seen.part:
        return False
    mine = (_ORDER.index(signal.key), signal.seen.line)
    return any(
        (_ORDER.index(x.key), x.seen.line) < mine and near(signal, x, OOM_LINES, OOM_S) for x in others[:MAX_COMPARED]
    )


def _with_limit(signal: Signal, notes: Sequence[Signal], context: Context) -> Signal:
    """Older kernels name the group on a line of its own."""
    if signal.key != "host.oom.killed":
        return signal
    for note in notes:
        cgroup = note.seen.attributes.get("cgroup", "")
        if cgroup and near(signal, note, OOM_LINES, OOM_S):
            key = "host.oom.global" if cgroup == "/" else "host.oom.cgroup"
            seen = msgspec.structs.replace(
                signal.seen, signal=key, attributes={**signal.seen.attributes, "cgroup": cgroup}
            )
            return Signal(seen=seen, row=context.catalog.row(key), because=(f"the limit of {cgroup}",))
    return signal


def trainer_killed(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A rank that the memory killer ended is the application's fault, and no part of the node's."""
    ranks = [x.seen for x in signals if kind_of(x.seen.part) == "rank" or x.key in _KILLED_RANKS]
    pids = {(seen.node, seen.attributes.get("pid", "")) for seen in ranks if seen.attributes.get("pid")}
    killed = {x.seen.node for x in signals if x.key in _KILLED_RANKS}
    return [_graded_kill(signal, pids, killed) if signal.key in _ORDER else signal for signal in signals]


def _graded_kill(signal: Signal, pids: set[tuple[str, str]], killed: set[str]) -> Signal:
    seen = signal.seen
    process, pid = seen.attributes.get("process", ""), seen.attributes.get("pid", "")
    was_rank = (seen.node, pid) in pids or ("", pid) in pids
    if was_rank or (process.startswith(TRAINERS) and killed & {seen.node, ""}):
        return signal.graded(
            "the process was a rank of the job",
            verdict=Verdict.FAULTY,
            isolate=False,
            urgency=Urgency.NOW,
            confidence=0.95,
        )
    if process.startswith(TRAINERS):
        return signal.graded(f"{process} is what a trainer is called", verdict=Verdict.FAULTY, isolate=False)
    return signal


def one_server(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A line that says only which kind of file system means the one server of that kind that other lines name."""
    named: dict[tuple[Place, str], set[str]] = {}
    for signal in signals:
        kind, colon, _ = signal.seen.part.partition(":")
        if signal.key.startswith("mount.") and colon:
            named.setdefault((place(signal), kind), set()).add(signal.seen.part)
    made = []
    for signal in signals:
        servers = named.get((place(signal), signal.seen.part), set()) if signal.key.startswith("mount.") else set()
        if len(servers) == 1:
            seen = msgspec.structs.replace(signal.seen, part=min(servers))
            signal = msgspec.structs.replace(signal, seen=seen)
        made.append(signal)
    return made


def waits_for_storage(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Hung tasks whose stacks name a network file system, or beside a file server that is silent, are that server's."""
    reasons = by_boot(x for x in signals if x.key.startswith("mount.") and not x.key.endswith(".ok"))
    return [
        _dependent(signal, reasons.get(place(signal), [])) if signal.key == "host.hung_task" else signal
        for signal in signals
    ]


def _dependent(signal: Signal, reasons: Sequence[Signal]) -> Signal:
    for reason in reasons[:MAX_COMPARED]:
        if near(signal, reason, STACK_LINES, STACK_S):
            seen = msgspec.structs.replace(signal.seen, part=reason.seen.part)
            return msgspec.structs.replace(signal, seen=seen).graded(
                f"waits for {name_of(reason.seen.part) or 'a shared file system'}",
                cause=Cause.DEPENDENCY, failure_class="storage.shared", scope=Scope.DEPENDENCY, verdict=Verdict.SUSPECT,
                isolate=False, urgency=Urgency.NONE, confidence=0.75, remedy=reason.row.remedy,
            )  # fmt: skip
    return signal


def waits_for_driver(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A hung task whose own stack stands in the accelerators' driver waits for a card."""
    stacks = Nearby([x for x in signals if x.key == "driver.stack"])
    made = []
    for signal in signals:
        if (
            signal.key == "host.hung_task"
            and signal.row.scope is Scope.NODE
            and any(
                x.seen.line >= signal.seen.line and near(signal, x, OWN_STACK_LINES, OWN_STACK_S)
                for x in stacks.around(signal, OWN_STACK_LINES)
            )
        ):
            seen = msgspec.structs.replace(signal.seen, signal="driver.hung")
            because = ("its stack stands in the driver",)
            signal = Signal(seen=seen, row=context.catalog.row("driver.hung"), because=because)
        made.append(signal)
    return made


_LOST_AND_FOUND = (
    ("mount.nfs.not_responding", "mount.nfs.ok"),
    ("mount.lustre.lost", "mount.lustre.ok"),
    ("mount.ceph.lost", "mount.ceph.ok"),
    ("mount.nvmeof.lost", "mount.nvmeof.ok"),
    ("host.service.", "host.service.up"),
)


def answers_again(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """What was silent and answers again is over: worth counting, no longer a fault."""
    found = by_boot(x for x in signals if any(x.key == ok for _, ok in _LOST_AND_FOUND))
    return [_over(signal, found.get(place(signal), [])) for signal in signals]


def _over(signal: Signal, found: Sequence[Signal]) -> Signal:
    if signal.row.verdict not in _BAD:
        return signal
    for lost, ok in _LOST_AND_FOUND:
        if not signal.key.startswith(lost):
            continue
        later = next((x for x in reversed(found) if x.key == ok and _same(x, signal) and follows(x, signal)), None)
        if later is not None:
            return signal.graded(
                f"came back, line {later.seen.line}", verdict=Verdict.WATCH, isolate=False, urgency=Urgency.NONE
            )
    return signal


def _same(one: Signal, other: Signal) -> bool:
    """The same server or service; a line that names no server speaks for every one of its kind."""
    a, b = one.seen.part, other.seen.part
    return a == b or (":" not in a and b.startswith(f"{a}:"))


def repeated_lock_ups(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A processor that is stuck again, or still, is a node that has failed. Two logs of one machine tell one lock-up twice."""
    many: dict[tuple[Place, str, str], int] = {}
    for signal in signals:
        if signal.key in _STUCK:
            many[_told(signal)] = many.get(_told(signal), 0) + signal.seen.count
    return [
        signal.graded("again on the same node", verdict=Verdict.FAULTY, isolate=True, confidence=0.85)
        if signal.key in _STUCK and many[_told(signal)] >= 2
        else signal
        for signal in signals
    ]


def _told(signal: Signal) -> tuple[Place, str, str]:
    return place(signal), signal.key, signal.seen.file


def many_disks(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Drives that fail together have something in common: their controller, backplane or power."""
    drives = by_boot(x for x in signals if x.row.verdict is Verdict.FAULTY and _is_drive(x))
    derived: list[Signal] = []
    echoes: set[int] = set()
    for found in drives.values():
        for index, first in enumerate(found):
            together = [x for x in found[index : index + MAX_COMPARED] if within(first, x, DISKS_S)]
            names = sorted({name_of(x.seen.part) for x in together})
            if len(names) >= MANY_DISKS and id(first) not in echoes:
                echoes |= {id(x) for x in together}
                seen = msgspec.structs.replace(first.seen, signal="disk.controller_fault", part="")
                because = (f"{len(names)} drives failed within {DISKS_S:.0f} s: {', '.join(names[:16])}",)
                derived.append(Signal(seen=seen, row=context.catalog.row("disk.controller_fault"), because=because))
    return [
        x.harmless("several drives at once: their controller's") if id(x) in echoes else x for x in signals
    ] + derived


_BESIDE_A_DRIVE = re.compile(r"(?:ata|md|dm-)\d+$")


def one_drive(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The port of a SATA drive (``ata3``), a PCI address, a line without a name and the array or volume on top of a drive tell
    what the drive is told of beside them."""
    named = Nearby([x for x in signals if x.key.startswith("disk.") and _is_named(x)])
    members = {(x.seen.node, x.seen.detail.partition(": member ")[0]) for x in signals if ": member " in x.seen.detail}
    kept = []
    for signal in signals:
        if signal.key == "md.degraded" and (signal.seen.node, name_of(signal.seen.part)) in members:
            signal = signal.harmless("its failed member is named")
        elif _of_a_drive(signal) and signal.row.verdict in _BAD and not _is_named(signal):
            beside = [x for x in named.around(signal, SECTION_LINES) if near(signal, x, SECTION_LINES, DISKS_S)]
            drives = {x.seen.part for x in beside if x.row.verdict in _BAD}
            if len(drives) == 1:
                signal = signal.harmless(f"told of {drives.pop()} beside it")
        kept.append(signal)
    return kept


def _of_a_drive(signal: Signal) -> bool:
    return signal.key.startswith("disk.") or (signal.key.startswith("pcie.") and kind_of(signal.seen.part) == "disk")


def _is_named(signal: Signal) -> bool:
    name = name_of(signal.seen.part)
    return bool(name) and ":" not in name and _BESIDE_A_DRIVE.match(name) is None


def _is_drive(signal: Signal) -> bool:
    part = signal.seen.part
    return (
        signal.key.startswith("disk.") and kind_of(part) == "disk" and signal.row.scope is Scope.DISK
        and not name_of(part).startswith(("md", "dm-"))
    )  # fmt: skip


def in_an_orderly_end(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A machine that is being shut down stops services and links: no fault."""
    ends = by_boot(x for x in signals if x.key == "host.shutdown")
    kept = []
    for signal in signals:
        if signal.key.startswith(("host.service.", "nic.link_lost", "mount.nfs.not_responding")) and any(
            follows(signal, x) and within(signal, x, ENDING_S) for x in ends.get(place(signal), [])[:MAX_COMPARED]
        ):
            signal = signal.harmless("the machine was being shut down")
        kept.append(signal)
    return kept


def named_section(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The section of a firmware's record says whether memory, the bus or a processor failed; it may name the device too."""
    details = Nearby([x for x in signals if x.key in _SECTIONS])
    return [
        _about(signal, details.around(signal, SECTION_LINES))
        if signal.key.startswith("host.cper.") and signal.key not in _SECTIONS
        else signal
        for signal in signals
    ]


def _about(signal: Signal, details: Sequence[Signal]) -> Signal:
    after = [x for x in details if x.seen.line > signal.seen.line and place(x) == place(signal)]
    name = next((x.seen.attributes["section"] for x in after if x.key == "host.cper.section"), "")
    better = {"memory error": "dram.host", "PCIe error": "gpu.pcie"}.get(name)
    if better is None:
        return signal
    device = next((x.seen.part for x in after if x.key == "host.cper.device"), "") if name == "PCIe error" else ""
    if device:
        signal = msgspec.structs.replace(signal, seen=msgspec.structs.replace(signal.seen, part=device))
    return signal.graded(f"the record is about a {name}", failure_class=better)


RULES: tuple[Rule, ...] = (
    *bus.RULES,
    Rule(name="one_oom", text="The lines of one memory kill are one signal, with its group.", apply=one_oom),
    Rule(
        name="trainer_killed",
        text="A rank that was killed for memory is the application's fault.",
        apply=trainer_killed,
    ),
    Rule(name="one_drive", text="A drive's port tells again what is told of the drive.", apply=one_drive),
    Rule(name="one_server", text="A kind of file system is its one server that other lines name.", apply=one_server),
    Rule(
        name="waits_for_storage",
        text="Hung tasks in a network file system are the file server's.",
        apply=waits_for_storage,
    ),
    Rule(
        name="waits_for_driver", text="Hung tasks in the accelerators' driver wait for a card.", apply=waits_for_driver
    ),
    Rule(name="answers_again", text="A server or service that came back is over.", apply=answers_again),
    Rule(name="repeated_lock_ups", text="Lock-ups that repeat are the node's fault.", apply=repeated_lock_ups),
    Rule(name="many_disks", text="Many drives at once are their controller.", apply=many_disks),
    Rule(name="in_an_orderly_end", text="What a shutdown stops is no fault.", apply=in_an_orderly_end),
    Rule(name="named_section", text="A firmware record's section says what failed.", apply=named_section),
)
