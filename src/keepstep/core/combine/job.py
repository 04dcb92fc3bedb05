"""Combination rules of job signals: many reports are one hang, victims are not culprits, an echo is no fault. Pure."""

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct, field

from keepstep.core import hangs
from keepstep.core.catalog.row import Scope, Verdict
from keepstep.core.combine.job_timeouts import one_hang
from keepstep.core.incident import Cause
from keepstep.core.observation import Observation
from keepstep.core.signal import Context, Rule, Signal, within

XID_WINDOW_S = 60.0
_MOST_NAMED = 8

VICTIMS = (
    "job.peer_lost", "job.comm.remote", "job.comm.system", "job.comm.cuda", "job.comm.completion", "job.rendezvous",
    "job.error.refused", "job.collective_timeout", "job.hang.unlocated", "job.exit.abort", "job.watchdog_stuck",
)  # fmt: skip
"""What the others print after one has failed."""
CULPRIT_ENDS = (
    "job.exit.sigkill",
    "job.exit.segv",
    "job.exit.bus",
    "job.exit.crash",
    "job.oom_killed",
    "job.node_failure",
)
ENDED_BY_SCHEDULER = ("job.time_limit", "job.preempted")
_DEVICE_ECHO = "job.error.cuda"


# ---- hangs


def _collective_records(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The dumps of all ranks, put together: who is not where the others wait."""
    found = list(signals)
    states = [signal for signal in signals if signal.key == "job.collective_state"]
    for job in jobs(states, lambda seen: seen.part):
        hang = hangs.localise(state for s in job if (state := hangs.unpacked(s.seen.attributes)) is not None)
        if hang is not None:
            by_part = {s.seen.part: s.seen for s in job}
            found.extend(_of_records(hang, by_part, job[0].seen, context))
    return found


def _of_records(
    hang: hangs.Hang, by_part: dict[str, Observation], any_dump: Observation, context: Context
) -> Iterable[Signal]:
    names = hangs.ranges([suspect.rank for suspect in hang.suspects])
    waiting = hangs.ranges(hang.waiting)
    common = {"ranks": names, "waiting": waiting, "hang": any_dump.file.rpartition("/")[0] or "dumps"}
    if not hang.suspects and hang.group is not None:
        text = f"ranks {waiting} wait in {_place(hang.group)}"
        seen = _derived(any_dump, "job.hang.unlocated", "job", text, common | _where(hang.group))
        yield Signal(seen=seen, row=context.catalog.row(seen.signal), because=("all entered, nobody finished",))
    for suspect in hang.suspects[:_MOST_NAMED]:
        part = f"rank/{suspect.rank}"
        key = "job.hang.device" if suspect.how == "not_finished" else "job.hang"
        text = f"rank {suspect.rank} {_HOW[suspect.how]} ({_place(suspect.group)}); hang of ranks {names}, waiting: {waiting}"
        told = common | _where(suspect.group) | {"rank": str(suspect.rank), "how": suspect.how}
        seen = _derived(by_part.get(part, any_dump), key, part, text, told)
        yield Signal(seen=seen, row=context.catalog.row(key), because=("flight-recorder dumps of all ranks compared",))


def _place(group: hangs.GroupState) -> str:
    if not group.op:
        return f"a transfer of {group.desc or group.name}"
    return f"{group.op} {group.size}, number {group.waits_at} of {group.desc or group.name}"


def _where(group: hangs.GroupState) -> dict[str, str]:
    return {"pg": group.name, "pg_desc": group.desc, "seq": str(group.waits_at), "op": group.op}


_HOW = {
    "not_entered": "never entered the collective that its peers wait in",
    "not_finished": "never finished a collective that its peers saw finish",
    "no_dump": "left no dump while its peers wait for it",
    "differs": "called another collective than its peers",
    "peer": "has nothing open while its peer waits for it",
}


def _odd_stacks(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """The stacks of all processes, put together: who stands apart."""
    found = list(signals)
    stacks = [signal for signal in signals if signal.key == "job.stack"]
    for job in jobs(stacks, lambda seen: f"{seen.node} {seen.part}"):
        by_name = {f"{s.seen.node}/{s.seen.part}": s.seen for s in job}
        rows = [
            hangs.Stack(
                name=name, frames=tuple(filter(None, seen.attributes.get("frames", "").split("\n"))),
                error=seen.attributes.get("error", ""),
            )
            for name, seen in by_name.items()
        ]  # fmt: skip
        for odd in hangs.odd_one_out(rows)[:_MOST_NAMED]:
            seen = by_name[odd.name]
            pid = seen.attributes.get("pid", "")
            text = f"process {pid} {odd.why}; it stands in {odd.frame or 'an unknown place'}"
            told = {k: v for k, v in seen.attributes.items() if k in ("pid", "local_rank", "gil", "state")}
            told |= {"frame": odd.frame, "peers": ",".join(name.rpartition("/")[2] for name in odd.peers)[:200]}
            signal = "job.hang.program" if odd.frame else "job.hang"
            hang = _derived(seen, signal, seen.part, text, told)
            found.append(
                Signal(seen=hang, row=context.catalog.row(signal), because=("stacks of all processes compared",))
            )
    return found


def _derived(seen: Observation, signal: str, part: str, text: str, attributes: dict[str, str]) -> Observation:
    return Observation(
        signal=signal, node=seen.node, part=part, at_s=seen.at_s, clock=seen.clock, detail=text[:500],
        attributes=attributes, source="combination", file=seen.file, line=seen.line, entry=seen.entry,
    )  # fmt: skip


def jobs(signals: Sequence[Signal], identity: Callable[[Observation], str]) -> list[list[Signal]]:
    """Signals by the job they are of: all are one job, unless an identity comes twice; then each folder is, or each file."""
    for key in (lambda seen: "", lambda seen: seen.file.rpartition("/")[0], lambda seen: seen.file):
        parted: dict[str, list[Signal]] = {}
        for signal in signals:
            parted.setdefault(key(signal.seen), []).append(signal)
        if all(len({identity(s.seen) for s in part}) == len(part) for part in parted.values()):
            break
    return list(parted.values())


# ---- peers


def _peer_named_by_most(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Where several cannot reach a peer, the one that most of them name is the suspect; who reports is not."""
    reporters: dict[str, set[str]] = {}
    for signal in signals:
        if signal.key == "job.peer_unreachable" and signal.seen.attributes.get("peer"):
            reporters.setdefault(signal.seen.attributes["peer"], set()).add(_reporter(signal))
    most = max(map(len, reporters.values()), default=0)
    if most < 2:
        return list(signals)
    graded = []
    for signal in signals:
        named = (
            len(reporters.get(signal.seen.attributes.get("peer", ""), ()))
            if signal.key == "job.peer_unreachable"
            else -1
        )
        if named == most:
            signal = signal.graded(f"named by {named} reporters, more than any other peer", confidence=0.75)
        elif named >= 0:
            signal = signal.graded(f"another peer is named by {most} reporters", verdict=Verdict.WATCH, confidence=0.2)
        graded.append(signal)
    return graded


def _reporter(signal: Signal) -> str:
    told = signal.seen.attributes
    return f"{told.get('reporter', signal.seen.node)}/{told.get('rank', told.get('pid', signal.seen.file))}"


# ---- echoes and victims


def _device_error_beside_xid(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A device error that the program got is the echo of what the kernel said about a card of that node."""
    kernel = [s for s in signals if s.key.startswith(("xid.", "sxid.")) and s.row.verdict is Verdict.FAULTY]
    if not kernel:
        return list(signals)
    hosts = {signal.seen.node for signal in signals if signal.seen.node}
    return [_echo_of(signal, kernel, hosts) for signal in signals]


def _echo_of(signal: Signal, kernel: Sequence[Signal], hosts: set[str]) -> Signal:
    if not signal.key.startswith((_DEVICE_ECHO, "job.comm.cuda")):
        return signal
    for fault in kernel:
        here = fault.seen.node == signal.seen.node or (len(hosts) <= 1)
        if here and within(signal, fault, XID_WINDOW_S):
            return signal.harmless(f"echo of {fault.key} on {fault.seen.part or fault.seen.node}")
    return signal


def _kill_beside_oom(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """A process that was killed on a node whose kernel ran out of memory: that is who killed it."""
    killers: dict[str, str] = {}
    for signal in signals:
        if signal.key.startswith("host.oom.") and signal.key != "host.oom.note":
            killers.setdefault(signal.seen.node, signal.key)
    if not killers:
        return list(signals)
    anywhere = next(iter(killers.values()))
    graded = []
    for signal in signals:
        if signal.key in ("job.exit.sigkill", "job.error.dataloader_killed"):
            killer = killers.get(signal.seen.node, killers.get("")) if signal.seen.node else anywhere
            if killer is not None:
                why = f"the kernel's memory killer ({killer})"
                signal = signal.graded(why, confidence=0.9, cause=Cause.HOST_SOFTWARE)
        graded.append(signal)
    return graded


class _Roots(Struct, kw_only=True):
    """What is known of the culprits, so that each victim is judged in one look."""

    first: Signal
    errors: bool = False
    oom: bool = False
    lost_node: bool = False
    reported: dict[str, set[str]] = field(default_factory=dict)
    """Key of an end -> pids of which the launcher's report tells it."""
    beyond: set[str] = field(default_factory=set)
    """Ranks with a fault that is not the program's."""


def _victims(signals: Sequence[Signal], context: Context) -> list[Signal]:
    """Beside a culprit, whoever lost a peer, timed out or was ended is a victim; a report of an end repeats its error."""
    roots = _known([signal for signal in signals if _is_root(signal)])
    stopped = next((s for s in signals if s.key in ENDED_BY_SCHEDULER), None)
    if roots is None and stopped is None:
        return list(signals)
    return [_demoted(signal, roots, stopped) for signal in signals]


def _is_root(signal: Signal) -> bool:
    if signal.row.verdict not in (Verdict.FAULTY, Verdict.SUSPECT) or signal.key in VICTIMS:
        return False
    if signal.key.startswith("job.error."):
        return signal.row.confidence >= 0.5 or "exception" in signal.seen.attributes
    if signal.key.startswith("job."):
        return signal.key in CULPRIT_ENDS and signal.seen.attributes.get("root") != "no"
    hardware = signal.row.cause in (Cause.DEVICE, Cause.HOST_HARDWARE, Cause.POWER)
    return (
        hardware and signal.row.verdict is Verdict.FAULTY and signal.row.scope in (Scope.CARD, Scope.NODE, Scope.RACK)
    )


def _known(roots: Sequence[Signal]) -> _Roots | None:
    if not roots:
        return None
    known = _Roots(first=roots[0])
    for root in roots:
        told = root.seen.attributes
        known.errors = known.errors or root.key.startswith("job.error.")
        known.oom = known.oom or root.key == "job.oom_killed"
        known.lost_node = known.lost_node or (root.key == "job.node_failure" and bool(root.seen.node))
        if told.get("root") == "yes":
            known.reported.setdefault(root.key, set()).add(told.get("pid", ""))
        if root.row.scope is not Scope.JOB and root.key != "job.error.application":
            known.beyond.add(told.get("rank", ""))
    return known


def _demoted(signal: Signal, roots: _Roots | None, stopped: Signal | None) -> Signal:
    if signal.row.verdict is Verdict.BENIGN or not signal.key.startswith("job."):
        return signal
    if stopped is not None and signal.key.startswith(("job.exit.", *VICTIMS)):
        return signal.harmless(f"the scheduler ended the job ({stopped.key})")
    if roots is None:
        return signal
    told, first = signal.seen.attributes, roots.first
    if told.get("root") == "no":
        return signal.harmless("failed after the first failure, says the launcher")
    if signal.key in VICTIMS:
        return signal.harmless(f"victim of {first.key} ({first.seen.part or first.seen.node or 'the job'})")
    if signal.key == "job.exit.error" and roots.errors:
        return signal.harmless("the end of a rank whose error stands by itself")
    if signal.key == "job.error.application" and roots.beyond - {told.get("rank", "")}:
        # What ranks raise when another one is gone.
        return signal.graded("another error is more particular", confidence=0.3, verdict=Verdict.WATCH)
    if signal.key == "job.node_failure" and not signal.seen.node and roots.lost_node:
        return signal.harmless("the node is named elsewhere")
    return signal.harmless("told again") if _is_told_again(signal, roots) else signal


def _is_told_again(signal: Signal, roots: _Roots) -> bool:
    """The launcher's agent, its report and a scheduler tell one end: the report says most, an OOM line more."""
    if signal.key == "job.exit.sigkill" and roots.oom:
        return True
    told = signal.seen.attributes
    reported = roots.reported.get(signal.key, set())
    again = signal.key.startswith("job.exit.") and told.get("root", "agent") == "agent"
    return again and bool(reported) and ("pid" not in told or told["pid"] in reported)


RULES: tuple[Rule, ...] = (
    Rule(
        name="collective_records",
        text="Dumps of all ranks are compared per process group; the rank that is not where the others wait is named.",
        apply=_collective_records,
    ),
    Rule(
        name="odd_stack",
        text="Stacks of all processes are compared; the one that is in no collective while the others wait is named.",
        apply=_odd_stacks,
    ),
    Rule(name="one_timeout_one_hang", text="However many ranks report a timeout, it is one hang.", apply=one_hang),
    Rule(
        name="peer_named_by_most",
        text="Of the peers that cannot be reached, the one that most reporters name is the suspect.",
        apply=_peer_named_by_most,
    ),
    Rule(
        name="device_error_beside_xid",
        text="A device error in the job's log beside a fatal Xid of the node is its echo; without one it is software.",
        apply=_device_error_beside_xid,
    ),
    Rule(
        name="kill_beside_oom",
        text="A rank that was killed while its node's kernel ran out of memory was killed for that.",
        apply=_kill_beside_oom,
    ),
    Rule(
        name="victims_beside_culprit",
        text="Beside a culprit, lost connections, timeouts and ends by signal are consequences.",
        apply=_victims,
    ),
)
