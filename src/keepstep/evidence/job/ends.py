"""Reads how processes ended: torchrun's report, schedulers' and shells' lines, exit codes. One line, one sighting.

Most ends are consequences: whoever is ended by its launcher or after another one is a victim. The report's root cause is told
from its other failures here; the rest is for the rules.
"""

import re

from keepstep.evidence.job.sighting import Sighting

_AGENT = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_FIELD = re.compile(r"^\s{0,8}(time|host|rank|exitcode|error_file|traceback)\s{0,8}: (.{0,400})")
_RANK = re.compile(r"(\d+) \(local_rank: (\d+)\)")
_CODE = re.compile(r"(-?\d+) \(pid: (\d+)\)")
_SIGNAL_EXCEPTION = re.compile(r"SignalException: Process (\d+) got signal: (\d+)")
_BY_SIGNAL = re.compile(r"Signal (\d{1,3}) \(SIG\w{2,8}\) received by PID (\d+)")
_DEATH_SIGNAL = re.compile(r"Received (?:(\d+)|Signals\.(SIG\w+)) death signal, shutting down")
_SLURM_CANCEL = re.compile(
    r"slurmstepd: error: \*\*\* (?:JOB|STEP) (\S+) (?:ON (\S+) )?CANCELLED AT (\S+?)(?: DUE TO ([A-Z ]+)|[ ,]|$)"
)
_SLURM_OOM = re.compile(
    r"[Dd]etected (\d+) oom[-_ ]kill event|oom-kill event|Exceeded job memory limit|Out Of Memory", re.I
)
_SRUN_TASK = re.compile(
    r"srun: error: (\S+): tasks? ([\d,\-\[\]]+): (Killed|Terminated|Segmentation fault|Aborted|Bus error|Out Of Memory|"
    r"Exited with exit code (\d+)|Floating point exception|Illegal instruction)"
)
_SRUN_NODE = re.compile(r"(?:srun: error: |slurmstepd: error: )?[Nn]ode failure on (\S+)|NODE_FAIL")
_MPIRUN = re.compile(r"process rank (\d+) with PID (\d+) on node (\S+) exited on signal (\d+)")
_DEEPSPEED = re.compile(r"exits with return code ?= ?(-?\d+)")
_SHELL = re.compile(
    r"(?:line \d+: +\d+ |^)(Killed|Segmentation fault|Bus error|Aborted|Illegal instruction|Terminated)\b"
)
_FATAL = re.compile(
    r"^Fatal Python error: (Segmentation fault|Bus error|Aborted|Floating point exception|Illegal instruction)"
)
_HANDLER = re.compile(r"Signal: (?:Segmentation fault|Bus error|Aborted)[^\n]{0,20}\((\d+)\)")
_CONTAINER = re.compile(r"\bOOMKilled\b|[Ee]xit(?:ed with)? code:? (137|139|143|134|135)\b")
_LAUNCHER_STOP = re.compile(r"Sending process (\d+) closing signal (SIG\w+)|Killing subprocess (\d+)")

SIGNALS = {
    1: "sighup",
    2: "interrupt",
    4: "crash",
    6: "abort",
    7: "bus",
    8: "crash",
    9: "sigkill",
    11: "segv",
    15: "sigterm",
}
_BY_NAME = {
    "Killed": 9, "Terminated": 15, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7, "Illegal instruction": 4,
    "Floating point exception": 8,
}  # fmt: skip


def end_key(code: int) -> str:
    """Key of an exit code as shells (137) and Python (-9) write it; empty for success."""
    number = -code if code < 0 else code - 128 if 128 < code < 160 else 0
    if code == 0:
        return ""
    return f"job.exit.{SIGNALS.get(number, 'error')}"


class Ends:
    """Goes through the lines; keeps the report of torchrun that it is in."""

    def __init__(self) -> None:
        self._report: dict[str, str] | None = None
        self._root = False

    def take(self, line: str) -> Sighting | None:
        if "first observed failure" in line or line.startswith("Root Cause"):
            self._report, self._root = {}, True
            return None
        if line.startswith("Failures:"):
            self._report, self._root = {}, False
            return None
        if self._report is not None:
            field = _FIELD.match(line)
            if field is not None:
                return self._field(field[1], field[2])
        return next((found for reader in _READERS if (found := reader(line)) is not None), None)

    def _field(self, name: str, value: str) -> Sighting | None:
        assert self._report is not None
        report = self._report
        if name == "time":
            report.clear()
        report[name] = value
        if name != "exitcode":
            return None
        code, rank = _CODE.match(value), _RANK.match(report.get("rank", ""))
        if code is None:
            return None
        attributes = {
            "exitcode": code[1], "pid": code[2], "node": report.get("host", "").strip(),
            "root": "yes" if self._root else "no",
        }  # fmt: skip
        if rank is not None:
            attributes |= {"rank": rank[1], "local_rank": rank[2]}
        return Sighting(end_key(int(code[1])), attributes) if end_key(int(code[1])) else None


def _agent(line: str) -> Sighting | None:
    match = _AGENT.search(line)
    if match is None or not end_key(int(match[1])):
        return None
    return Sighting(
        end_key(int(match[1])), {"exitcode": match[1], "local_rank": match[2], "pid": match[3], "root": "agent"}
    )


def _external(line: str) -> Sighting | None:
    match = _SIGNAL_EXCEPTION.search(line)
    if match is not None:
        key = SIGNALS.get(int(match[2][:3]), "error")
        return Sighting(f"job.exit.{key}", {"pid": match[1], "by": "launcher"})
    by_signal = _BY_SIGNAL.search(line)
    if by_signal is not None:
        return Sighting(end_key(-int(by_signal[1])), {"pid": by_signal[2]})
    death = _DEATH_SIGNAL.search(line)
    if death is not None:
        number = int(death[1][:3]) if death[1] else {"SIGTERM": 15, "SIGINT": 2, "SIGHUP": 1}.get(death[2], 15)
        return Sighting(f"job.exit.{SIGNALS.get(number, 'error')}", {"by": "outside"})
    stop = _LAUNCHER_STOP.search(line)
    if stop is not None:
        return Sighting("job.launcher_stops", {"pid": stop[1] or stop[3]})
    return None


def _slurm(line: str) -> Sighting | None:
    cancel = _SLURM_CANCEL.search(line)
    if cancel is not None:
        why = (cancel[4] or "").strip()
        known = {"TIME LIMIT": "job.time_limit", "PREEMPTION": "job.preempted", "NODE FAILURE": "job.node_failure"}
        if "NODE FAIL" in why:
            why = "NODE FAILURE"
        # The node of this line is where the step began: not the one that failed.
        return Sighting(known.get(why, "job.cancelled"), {"job": cancel[1], "on": cancel[2] or "", "why": why})
    task = _SRUN_TASK.search(line)
    if task is not None:
        if task[3] == "Out Of Memory":
            return Sighting("job.oom_killed", {"node": task[1], "rank": task[2]})
        code = int(task[4]) if task[4] else -_BY_NAME[task[3]]
        return Sighting(end_key(code) or "job.exit.error", {"node": task[1], "rank": task[2], "exitcode": str(code)})
    if ("slurm" in line or "srun" in line) and _SLURM_OOM.search(line):
        return Sighting("job.oom_killed", {})
    node = _SRUN_NODE.search(line)
    if node is not None and "srun" in line + "srun" * line.startswith("slurm"):
        return Sighting("job.node_failure", {"node": (node[1] or "").strip(",.")})
    return None


def _others(line: str) -> Sighting | None:
    mpi = _MPIRUN.search(line)
    if mpi is not None:
        return Sighting(end_key(-int(mpi[4][:3])), {"rank": mpi[1], "pid": mpi[2], "node": mpi[3]})
    deepspeed = _DEEPSPEED.search(line)
    if deepspeed is not None and end_key(int(deepspeed[1][:6])):
        return Sighting(end_key(int(deepspeed[1][:6])), {"exitcode": deepspeed[1]})
    fatal = _FATAL.search(line) or _SHELL.search(line)
    if fatal is not None:
        return Sighting(end_key(-_BY_NAME[fatal[fatal.re.groups]]), {})
    handler = _HANDLER.search(line)
    if handler is not None:
        return Sighting(end_key(-int(handler[1][:3])), {})
    container = _CONTAINER.search(line)
    if container is not None:
        return Sighting(end_key(int(container[1])) if container[1] else "job.oom_killed", {})
    return None


_READERS = (_agent, _external, _slurm, _others)
