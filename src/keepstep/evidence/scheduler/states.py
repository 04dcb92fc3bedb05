"""States of nodes and jobs as a scheduler spells them, and what they say. Pure; knows no file format.

That a node does not answer the scheduler is silence: unknown until a second witness says so. That somebody drained it is his
decision, not a fault.
"""

import re
from collections.abc import Iterable

from msgspec import Struct, field

from keepstep.core.observation import Observation
from keepstep.evidence.reading import Fine, Reading
from keepstep.evidence.scheduler import reason as reasons

MAX_NODES = 50_000
MAX_EXPANDED = 128
_SYMBOLS = "*~#!%$@^-+?"
_SHORT: dict[str, str] = {
    "alloc": "allocated", "mix": "mixed", "comp": "completing", "drng": "draining", "drain": "drained", "unk": "unknown",
    "failg": "failing", "resv": "reserved", "boot": "reboot", "no_respond": "not_responding", "inval": "invalid",
    "plnd": "planned", "npc": "perfctrs", "futr": "future", "pow_up": "powering_up", "pow_dn": "powering_down",
    "maintenance": "maint", "drain*": "drained", "reboot_issued": "reboot", "reboot_requested": "reboot",
    "power_up": "powering_up", "powered_down": "powering_down", "power_down": "powering_down", "power_drain": "powering_down",
    "powering_down": "powering_down", "poweredoff": "powering_down", "invalid_reg": "invalid",
}  # fmt: skip
NODE_WORDS = frozenset(
    [
        "allocated",
        "mixed",
        "idle",
        "down",
        "drained",
        "draining",
        "fail",
        "failing",
        "maint",
        "reserved",
        "unknown",
        "completing",
        "planned",
        "not_responding",
        "future",
        "powering_up",
        "powering_down",
        "reboot",
        "invalid",
        "error",
        "perfctrs",
        "blocked",
        "cloud",
        "dynamic_norm",
        "dynamic_future",
        "reservation",
    ]
)
_IN_SERVICE = ("allocated", "mixed", "idle", "completing", "planned", "reserved")
JOB_WORDS: dict[str, str] = {
    "NODE_FAIL": "scheduler.node_fail", "BOOT_FAIL": "scheduler.boot_fail", "LAUNCH_FAILED": "scheduler.boot_fail",
    "OUT_OF_MEMORY": "scheduler.out_of_memory", "FAILED": "scheduler.failed", "TIMEOUT": "scheduler.timeout",
    "DEADLINE": "scheduler.timeout", "PREEMPTED": "scheduler.preempted", "COMPLETED": "", "RUNNING": "", "PENDING": "",
    "CANCELLED": "", "SUSPENDED": "", "COMPLETING": "", "CONFIGURING": "", "REQUEUED": "", "RESIZING": "", "REVOKED": "",
    "STOPPED": "", "SIGNALING": "", "STAGE_OUT": "", "SPECIAL_EXIT": "", "REQUEUE_HOLD": "", "RECONFIG_FAIL": "",
}  # fmt: skip
JOB_SHORT = {
    "NF": "NODE_FAIL", "BF": "BOOT_FAIL", "OOM": "OUT_OF_MEMORY", "F": "FAILED", "TO": "TIMEOUT", "PR": "PREEMPTED",
    "CD": "COMPLETED", "R": "RUNNING", "PD": "PENDING", "CA": "CANCELLED", "CG": "COMPLETING", "CF": "CONFIGURING",
    "S": "SUSPENDED", "DL": "DEADLINE", "RD": "PENDING", "ST": "STOPPED",
}  # fmt: skip
_RANGE = re.compile(r"^([^\[\],]{0,128})\[([\d,-]{1,4000})\]([^\[\],]{0,64})$")


class Node(Struct, kw_only=True):
    """One node as the scheduler shows it."""

    names: str
    """One name, or a host list."""
    state: str
    reason: str = ""
    by: str = ""
    since: str = ""
    line: int = 0


class State(Struct, frozen=True, kw_only=True):
    words: frozenset[str]
    symbols: frozenset[str]

    def any(self, *words: str) -> bool:
        return any(word in self.words for word in words)

    @property
    def silent(self) -> bool:
        return "*" in self.symbols or "not_responding" in self.words

    @property
    def asleep(self) -> bool:
        """Switched off, or being so, on purpose."""
        return bool(self.symbols & {"~", "#", "%", "!"}) or self.any("powering_up", "powering_down", "future")


def state_of(text: str) -> State:
    """``MAINT*+DRAIN``, ``drained*``, ``IDLE+DRAIN+NOT_RESPONDING``, ``mix-`` → words and marks."""
    words: set[str] = set()
    symbols: set[str] = set()
    for item in re.split(r"[+,\s&]+", text.strip().lower()[:200]):
        word = item.rstrip(_SYMBOLS)
        symbols.update(item[len(word) :])
        if word:
            words.add(_SHORT.get(word, word))
    return State(words=frozenset(words), symbols=frozenset(symbols))


def is_node_state(text: str) -> bool:
    state = state_of(text)
    return bool(state.words) and state.words <= NODE_WORDS


def job_state(text: str) -> str:
    """The state's long name; empty where it is none. ``CANCELLED by 1000`` → ``CANCELLED``."""
    word = text.strip().upper().partition(" ")[0].rstrip("+")[:24]
    word = JOB_SHORT.get(word, word)
    return word if word in JOB_WORDS else ""


def expand(names: str) -> list[str]:
    """``a[01-03,7],b2`` → its names; a list that is too long stays as it is written."""
    found: list[str] = []
    for item in _split(names.strip()[:8000]):
        match = _RANGE.match(item)
        for name in _numbers(match) if match else [item]:
            if len(found) >= MAX_EXPANDED:
                return [names.strip()[:200]]
            found.append(name)
    return [name for name in found if name]


def _split(names: str) -> list[str]:
    items, depth, start = [], 0, 0
    for index, character in enumerate(names):
        depth += (character == "[") - (character == "]")
        if character == "," and depth <= 0:
            items.append(names[start:index])
            start = index + 1
    return [*items, names[start:]]


def _numbers(match: re.Match[str]) -> Iterable[str]:
    head, ranges, tail = match.groups()
    for one in ranges.split(","):
        first, dash, last = one.partition("-")
        if not dash:
            yield f"{head}{first}{tail}"
        elif first.isdecimal() and last.isdecimal() and len(last) < 9:
            for number in range(int(first), min(int(last), int(first) + MAX_EXPANDED + 1) + 1):
                yield f"{head}{number:0{len(first)}d}{tail}"


def judge_node(node: Node) -> list[tuple[str, str]]:
    """(signal, detail) of one node; nothing for one that is in service."""
    state, reason = state_of(node.state), reasons.read(node.reason)
    detail = f"state {node.state}" + (f", reason: {reason.text}" if reason.text else "")
    out = state.any("drained", "draining", "fail", "failing", "maint", "down", "invalid", "error")
    told: list[str] = []
    if reason.topic not in ("", "planned", "loss") and out:
        told.append(f"node.reason.{reason.topic}")
    elif state.any("fail", "failing"):
        told.append("node.failing")
    elif state.any("invalid", "error"):
        told.append("node.reason.config")
    planned = reason.topic == "planned" or state.any("maint", "reboot") or bool(state.symbols & {"$", "@", "^"})
    if (
        (reason.topic == "loss" and out)
        or (state.any("down") and not (planned or state.asleep or told))
        or (state.silent and not (out or state.asleep or planned))
    ):
        told.append("node.down")
    if not told and ((planned and out) or state.any("maint")):
        told.append("node.maintenance")
    elif not told and state.any("drained", "draining"):
        told.append("node.drained")
    if state.silent and out and "node.down" not in told and not state.asleep:
        told.append("node.silent")
    return [(signal, detail) for signal in told]


class Tally(Struct, kw_only=True):
    """What has been told already: a node is in several partitions, a job has several steps."""

    told: set[tuple[str, str]] = field(default_factory=set)


def tell_node(reading: Reading, tally: Tally, node: Node) -> None:
    reading.records += 1
    if reading.records > MAX_NODES or not node.state.strip():
        return
    found = judge_node(node)
    reason = reasons.read(node.reason)
    names = [node.names.strip()] if not found else expand(node.names)
    attributes = {
        "state": node.state[:60],
        "reason": reason.text[:200],
        "by": node.by or reason.by,
        "since": node.since or reason.since,
    }
    for name in names:
        for signal, detail in found:
            if (name, signal) not in tally.told:
                tally.told.add((name, signal))
                reading.observations.append(
                    Observation(
                        signal=signal, node=name[:200], detail=f"{name}: {detail}"[:500], attributes=attributes,
                        source=reading.reader, file=reading.file, line=node.line,
                    )
                )  # fmt: skip
        if (
            not found
            and state_of(node.state).any(*_IN_SERVICE)
            and len(reading.fine) < 1000
            and (name, "") not in tally.told
        ):
            tally.told.add((name, ""))
            text = f"the scheduler has it in service ({node.state})"
            reading.fine.append(Fine(part="", text=text, node=name[:200], file=reading.file, line=node.line))


class Job(Struct, kw_only=True):
    number: str
    state: str
    nodes: str = ""
    detail: str = ""
    line: int = 0


def tell_job(reading: Reading, tally: Tally, job: Job) -> None:
    """A job's end, once for all its steps."""
    reading.records += 1
    number = job.number.partition(".")[0].strip()[:60]
    state = job_state(job.state)
    signal = JOB_WORDS.get(state, "")
    if not signal or (number, signal) in tally.told or len(tally.told) > MAX_NODES:
        return
    tally.told.add((number, signal))
    hosts = expand(job.nodes) if job.nodes else []
    detail = f"job {number} ended {state}" + (f" on {job.nodes.strip()[:200]}" if hosts else "")
    attributes = {"nodes": job.nodes.strip()[:400], "state": state, "more": job.detail.strip()[:100]}
    reading.observations.append(
        Observation(
            signal=signal, node=hosts[0] if len(hosts) == 1 and signal == "scheduler.node_fail" else "",
            part="" if signal in ("scheduler.node_fail", "scheduler.boot_fail") else f"job/{number}", detail=detail,
            attributes=attributes, source=reading.reader, file=reading.file, line=job.line,
        )
    )  # fmt: skip
