"""Rows of job signals: hangs, ends, errors of the program, communication, steps. Data only.

What a job prints is mostly a consequence. A row says what the line means when nothing else is known; the combination rules
(``core/combine/job.py``) tell victims from culprits.
"""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_NOW, _NEXT, _NONE = Urgency.NOW, Urgency.NEXT_CHECKPOINT, Urgency.NONE
_BENIGN, _WATCH, _SUSPECT, _FAULTY = Verdict.BENIGN, Verdict.WATCH, Verdict.SUSPECT, Verdict.FAULTY
_JOB = Scope.JOB
_FIELD, _TORCH, _NCCL = "field reports", "torch source", "NCCL documentation"

_HANGS: dict[str, Row] = {
    "job.collective_state": row(
        Cause.UNKNOWN, "comm", _JOB, _BENIGN,
        "where one rank stands in its process groups; says something only beside the other ranks", source=_TORCH,
    ),
    "job.stack": row(
        Cause.UNKNOWN, "hang", _JOB, _BENIGN,
        "where one process stands; says something only beside its peers", source=_FIELD,
    ),
    "job.collective_progress": row(
        Cause.UNKNOWN, "comm", _JOB, _BENIGN, "how far a reporter of a timeout had come in one process group", source=_TORCH,
    ),
    "job.hang": row(
        Cause.UNKNOWN, "hang", _JOB, _FAULTY,
        "the ranks wait for one that did not come: restart the job, look at that rank's evidence before any hardware is blamed",
        urgency=_NOW, confidence=0.8, source=_TORCH,
        corroborate="an Xid, an OOM kill or a lost node of that rank is the cause; without one it is the program",
    ),
    "job.hang.device": row(
        Cause.DEVICE, "hang", _JOB, _SUSPECT,
        "a rank entered a collective that its peers saw finish, and never finished it itself: its device or its driver stands",
        urgency=_NOW, confidence=0.6, source=_TORCH, corroborate="recovery action, Xid, or a probe of that card",
    ),
    "job.hang.program": row(
        Cause.APPLICATION, "hang", _JOB, _FAULTY,
        "one process is elsewhere in the program while its peers wait in a collective: software; no hardware is taken out",
        urgency=_NOW, confidence=0.8, source=_FIELD,
    ),
    "job.hang.unlocated": row(
        Cause.UNKNOWN, "hang", _JOB, _SUSPECT,
        "ranks wait in a collective and nobody stands apart: those who report are victims, look for the rank that is silent",
        urgency=_NOW, confidence=0.5, source=_TORCH, corroborate="flight-recorder dumps and stacks of all ranks",
    ),
    "job.collective_timeout": row(
        Cause.UNKNOWN, "comm", _JOB, _SUSPECT,
        "a collective timed out on this rank: it reports as a victim, the culprit is whoever did not enter",
        urgency=_NOW, confidence=0.5, source=_TORCH,
        corroborate="sequence numbers count per process group; a run time far beyond the limit means a blocked watchdog",
    ),
    "job.watchdog_stuck": row(
        Cause.UNKNOWN, "hang", _JOB, _SUSPECT,
        "the thread that watches collectives makes no progress: a driver call hangs, or another thread holds the interpreter",
        urgency=_NOW, confidence=0.6, source=_TORCH, corroborate="stack of this rank; hung driver call on its node",
    ),
    "job.desync": row(
        Cause.APPLICATION, "comm", _JOB, _SUSPECT, "named by its peers as lagging, dead or mismatched in a collective",
        urgency=_NOW, confidence=0.7, source=_TORCH,
    ),
    "job.collective_mismatch": row(
        Cause.APPLICATION, "software.app", _JOB, _FAULTY, "ranks called different collectives at the same place",
        urgency=_NOW, confidence=0.9, source=_TORCH,
    ),
    "job.dump_refused": row(
        Cause.UNKNOWN, "security", _JOB, _WATCH, "a dump that would run code when opened was not opened", confidence=0.5,
        source="project",
    ),
}  # fmt: skip

_COMM: dict[str, Row] = {
    "job.peer_unreachable": row(
        Cause.NETWORK, "comm", _JOB, _SUSPECT,
        "retries towards a peer ran out: that peer or the path to it, not necessarily the one that reports",
        urgency=_NOW, confidence=0.5, remedy=Remedy.VALIDATE, source=_NCCL,
        corroborate="the peer named by most reporters; port counters at both ends",
    ),
    "job.comm.completion": row(
        Cause.NETWORK, "comm", _JOB, _SUSPECT, "a transfer ended with an error of the adapter", urgency=_NOW, confidence=0.4,
        source=_NCCL,
    ),
    "job.comm.flushed": row(
        Cause.NETWORK, "comm", _JOB, _BENIGN, "transfers given up because an earlier one failed: an echo", source=_NCCL,
    ),
    "job.comm.verbs": row(
        Cause.NETWORK, "comm", _JOB, _SUSPECT, "a call to the local adapter failed", urgency=_NOW, confidence=0.5,
        source=_NCCL, corroborate="the adapter's kernel log; limits on locked memory",
    ),
    "job.comm.config": row(
        Cause.APPLICATION, "software.nccl", _JOB, _FAULTY, "the communicator is configured wrongly", urgency=_NOW,
        confidence=0.8, remedy=Remedy.FIX_CONFIG, source=_NCCL,
    ),
    "job.comm.warning": row(
        Cause.UNKNOWN, "software.nccl", _JOB, _BENIGN, "a warning of the communication library without a known meaning",
        source=_NCCL,
    ),
    "job.comm.remote": row(
        Cause.NETWORK, "comm", _JOB, _SUSPECT, "a peer's process ended or the network failed: the reporter is a victim",
        urgency=_NOW, confidence=0.4, source=_NCCL,
    ),
    "job.comm.system": row(
        Cause.UNKNOWN, "comm", _JOB, _SUSPECT, "a system call of the communication library failed", urgency=_NOW,
        confidence=0.4, source=_NCCL, corroborate="the library's warning just before says which call",
    ),
    "job.comm.internal": row(
        Cause.UNKNOWN, "software.nccl", _JOB, _SUSPECT, "the communication library failed inside", urgency=_NOW,
        confidence=0.4, source=_NCCL,
    ),
    "job.comm.cuda": row(
        Cause.UNKNOWN, "comm", _JOB, _SUSPECT, "a device call of the communication library failed", urgency=_NOW,
        confidence=0.4, source=_NCCL,
    ),
    "job.peer_lost": row(
        Cause.UNKNOWN, "comm", _JOB, _WATCH, "the other end of a connection went away: a victim of whoever ended first",
        urgency=_NOW, confidence=0.3, source=_FIELD,
    ),
    "job.rendezvous": row(
        Cause.UNKNOWN, "comm", _JOB, _SUSPECT, "the ranks did not find together: one is missing or the store is not reached",
        urgency=_NOW, confidence=0.5, source=_TORCH,
    ),
    "job.nic_event": row(
        Cause.NETWORK, "nic.link", Scope.NIC, _SUSPECT, "the adapter told the job of a fault of its port", urgency=_NOW,
        confidence=0.6, remedy=Remedy.INSPECT, source=_NCCL, corroborate="port state and link_downed of that port",
    ),
}  # fmt: skip

_ENDS: dict[str, Row] = {
    "job.exit.sigterm": row(
        Cause.OPERATOR, "software.app", _JOB, _BENIGN,
        "ended from outside (SIGTERM): by its launcher after another rank's failure, by a scheduler or a person; a victim",
        source=_TORCH,
    ),
    "job.exit.sighup": row(
        Cause.OPERATOR, "software.app", _JOB, _BENIGN, "its terminal went away (SIGHUP): ended from outside", source=_TORCH,
    ),
    "job.exit.interrupt": row(
        Cause.OPERATOR, "software.app", _JOB, _BENIGN, "interrupted by a person", source=_TORCH,
    ),
    "job.interrupted": row(Cause.OPERATOR, "software.app", _JOB, _BENIGN, "interrupted by a person", source=_FIELD),
    "job.ended_outside": row(
        Cause.UNKNOWN, "software.victim", _JOB, _SUSPECT,
        "stopped from outside, and only victims speak: the cause is not in this evidence; a launcher, a scheduler or a person",
        urgency=_NOW, confidence=0.3, source="project",
        corroborate="the logs of the other ranks, the launcher's report, the scheduler's record of the job",
    ),
    "job.peers_gone": row(
        Cause.UNKNOWN, "comm", _JOB, _SUSPECT,
        "ranks lost their peers, and no peer says why: the cause is not in this evidence; who reports is a victim",
        urgency=_NOW, confidence=0.3, source="project", corroborate="the logs of the peers that went away first",
    ),
    "job.launcher_stops": row(
        Cause.UNKNOWN, "software.app", _JOB, _BENIGN, "the launcher ends the other ranks after a failure", source=_TORCH,
    ),
    "job.exit.sigkill": row(
        Cause.HOST_SOFTWARE, "os.memory", _JOB, _SUSPECT,
        "killed from outside (SIGKILL): most often the kernel's memory killer or the cgroup's limit", urgency=_NOW,
        confidence=0.6, source=_FIELD, corroborate="an OOM line in the kernel log of its node",
    ),
    "job.oom_killed": row(
        Cause.HOST_SOFTWARE, "os.memory", _JOB, _FAULTY, "killed because host memory ran out or its limit was reached",
        urgency=_NOW, confidence=0.9, source="scheduler documentation",
    ),
    "job.exit.segv": row(
        Cause.UNKNOWN, "software.app", _JOB, _SUSPECT, "crashed on a bad address: the program or a library", urgency=_NOW,
        confidence=0.5, source=_FIELD, corroborate="repeats on one node over several jobs: that node's memory",
    ),
    "job.exit.bus": row(
        Cause.HOST_SOFTWARE, "os.resource", _JOB, _SUSPECT,
        "bus error: most often shared memory that is full, else a file cut short or a device gone", urgency=_NOW,
        confidence=0.5, source=_FIELD,
    ),
    "job.exit.abort": row(
        Cause.UNKNOWN, "software.app", _JOB, _SUSPECT,
        "aborted itself: a failed assertion, or the watchdog of collectives after a timeout", urgency=_NOW, confidence=0.4,
        source=_TORCH,
    ),
    "job.exit.crash": row(
        Cause.UNKNOWN, "software.app", _JOB, _SUSPECT, "crashed: the program, a library, or a build for another processor",
        urgency=_NOW, confidence=0.5, source=_FIELD,
    ),
    "job.exit.error": row(
        Cause.APPLICATION, "software.app", _JOB, _SUSPECT, "ended with an error that the report does not show",
        urgency=_NOW, confidence=0.5, source=_TORCH, corroborate="the rank's own log",
    ),
    "job.cancelled": row(Cause.OPERATOR, "software.app", _JOB, _BENIGN, "cancelled by the scheduler or a person",
                         source="scheduler documentation"),
    "job.time_limit": row(Cause.OPERATOR, "software.app", _JOB, _BENIGN, "reached its time limit",
                          source="scheduler documentation"),
    "job.preempted": row(Cause.OPERATOR, "maintenance", _JOB, _BENIGN, "preempted by the scheduler",
                         source="scheduler documentation"),
    "job.node_failure": row(
        Cause.HOST_HARDWARE, "node.loss", Scope.NODE, _SUSPECT, "the scheduler lost a node of the job", urgency=_NOW,
        confidence=0.7, remedy=Remedy.VALIDATE, source="scheduler documentation",
        corroborate="a second witness: agent, BMC, peers",
    ),
    "job.survived": row(
        Cause.APPLICATION, "software.app", _JOB, _BENIGN, "an error that the program caught: it trained on afterwards",
        source="project",
    ),
}  # fmt: skip

_STEPS: dict[str, Row] = {
    "job.loss_spike": row(
        Cause.APPLICATION, "software.app", _JOB, _BENIGN,
        "a rise of the loss: such spikes heal within some tens of steps, and are no reason to go back", source=_FIELD,
    ),
    "job.loss_diverged": row(
        Cause.APPLICATION, "sdc|software.app", _JOB, _WATCH, "the loss rose and stayed there", confidence=0.5, source=_FIELD,
        corroborate="the same data on other cards; an equality test between cards",
    ),
    "job.loss_nan": row(
        Cause.APPLICATION, "sdc|software.app", _JOB, _SUSPECT, "the loss is no number any more", confidence=0.6,
        source=_FIELD, corroborate="repeats with the same data on other cards: the program; if not: a card that miscomputes",
    ),
    "job.step_slower": row(
        Cause.UNKNOWN, "straggler", _JOB, _WATCH,
        "steps take lastingly longer: one slow card, link or host holds all others up", confidence=0.6, source=_FIELD,
        corroborate="step times by rank; clocks, throttling, PCIe width, NIC counters",
    ),
    "job.straggler": row(
        Cause.UNKNOWN, "straggler", _JOB, _WATCH, "one rank is slower than its peers", urgency=_NEXT, confidence=0.7,
        source=_FIELD, corroborate="clocks, throttling, PCIe width, NIC counters, its data",
    ),
    "job.data_regression": row(
        Cause.DATA, "checkpoint", _JOB, _FAULTY,
        "the position in the data went back while the steps went on: samples are trained on again", urgency=_NEXT,
        confidence=0.8, source=_FIELD,
    ),
}  # fmt: skip


def _error(cause: Cause, failure_class: str, text: str, verdict: Verdict = _FAULTY, **more: object) -> Row:
    """An error that ended a rank: the job is to be started again at once."""
    scope = more.pop("scope", _JOB)
    assert isinstance(scope, Scope)
    return row(cause, failure_class, scope, verdict, text, **{"urgency": _NOW, "source": _FIELD, **more})


_CARD, _DEP = Scope.CARD, Scope.DEPENDENCY
_XID = "an Xid of the same node: then it is that card's; without one, the program"

_DEVICE_ERRORS: dict[str, Row] = {
    "job.error.cuda_ecc": _error(
        Cause.DEVICE, "gpu.memory.dbe", "the device reported an uncorrectable memory error to the program", scope=_CARD,
        confidence=0.85, remedy=Remedy.RESET_DEVICE, corroborate="Xid 48, 94, 95 or 63/64 says which card, and how bad",
    ),
    "job.error.cuda_nvlink": _error(
        Cause.DEVICE, "nvlink.link", "the device reported an uncorrectable error of its NVLink", scope=_CARD,
        confidence=0.7, remedy=Remedy.RESET_DEVICE, corroborate="Xid 74 or 144-150",
    ),
    "job.error.cuda_lost": _error(
        Cause.DEVICE, "gpu.fallen_off_bus", "the device is gone", scope=_CARD, confidence=0.85, remedy=Remedy.REBOOT,
        corroborate="Xid 79, or fewer devices than the inventory has",
    ),
    "job.error.cuda_hardware": _error(
        Cause.DEVICE, "gpu.compute_engine", "the device reported a hardware error of its engine", _SUSPECT, scope=_CARD,
        confidence=0.6, remedy=Remedy.VALIDATE, corroborate=_XID,
    ),
    "job.error.npu": _error(
        Cause.DEVICE, "gpu.compute_engine", "the accelerator reported an error of its engine", _SUSPECT, scope=_CARD,
        confidence=0.4, remedy=Remedy.VALIDATE, corroborate="the accelerator's own log; most often the program's own",
    ),
    "job.error.cuda_fabric": _error(
        Cause.HOST_SOFTWARE, "nvlink.fabric", "devices cannot be used before the fabric manager has set up their fabric",
        _SUSPECT, scope=Scope.NODE, confidence=0.7, remedy=Remedy.RESTART_SERVICE, corroborate="state of the fabric manager",
    ),
    "job.error.cuda_busy": _error(
        Cause.HOST_SOFTWARE, "gpu.init", "the devices are in use or cannot be used", _SUSPECT, scope=Scope.NODE,
        confidence=0.5, remedy=Remedy.VALIDATE, corroborate="left-over processes, exclusive mode, MIG, a card in error",
    ),
    "job.error.cuda_no_device": _error(
        Cause.HOST_SOFTWARE, "gpu.init", "no device is visible to the program", _SUSPECT, scope=Scope.NODE, confidence=0.5,
        remedy=Remedy.VALIDATE, corroborate="device count against the inventory; what the scheduler handed out",
    ),
    "job.error.cuda_driver": _error(
        Cause.HOST_SOFTWARE, "config.drift", "driver and library do not fit each other", scope=Scope.NODE, confidence=0.8,
        isolate=False, remedy=Remedy.FIX_CONFIG,
    ),
    "job.error.cuda_oom": _error(Cause.APPLICATION, "software.app", "out of device memory: the program", confidence=0.9),
    "job.error.cuda_assert": _error(
        Cause.APPLICATION, "software.app", "an assertion in device code failed: an index out of range, most often",
        confidence=0.9, corroborate=_XID,
    ),
    "job.error.cuda_illegal": _error(
        Cause.APPLICATION, "software.app", "device code touched an address that is not its own", confidence=0.7,
        corroborate=_XID,
    ),
    "job.error.cuda_launch": _error(
        Cause.APPLICATION, "software.app", "device code ended abnormally", _SUSPECT, confidence=0.5, corroborate=_XID,
    ),
    "job.error.cuda_library": _error(
        Cause.APPLICATION, "software.app", "a device library failed: memory, a wrong call, or an earlier error", _SUSPECT,
        confidence=0.4, corroborate=_XID,
    ),
    "job.error.cuda": _error(
        Cause.APPLICATION, "software.app", "a device call failed; as often the program as the device", _SUSPECT,
        confidence=0.4, corroborate=_XID,
    ),
}  # fmt: skip

_ERRORS: dict[str, Row] = {
    "job.error.application": _error(Cause.APPLICATION, "software.app", "the program raised an exception"),
    "job.error.nan": _error(
        Cause.APPLICATION, "sdc|software.app", "the program ended because of values that are no number", _SUSPECT,
        confidence=0.6, corroborate="repeats with the same data on other cards: the program",
    ),
    "job.error.data": _error(Cause.DATA, "software.app", "a sample could not be read or decoded", confidence=0.8),
    "job.error.checkpoint": _error(
        Cause.CHECKPOINT, "checkpoint", "a saved state could not be read or does not fit", confidence=0.85,
    ),
    "job.error.dataloader_killed": _error(
        Cause.HOST_SOFTWARE, "os.memory", "a process that loads data was killed or crashed: host memory, most often", _SUSPECT,
        confidence=0.6, corroborate="an OOM line in the kernel log of its node",
    ),
    "job.error.shared_memory": _error(
        Cause.HOST_SOFTWARE, "os.resource", "shared memory is full or too small", confidence=0.85, remedy=Remedy.FIX_CONFIG,
    ),
    "job.error.host_memory": _error(Cause.HOST_SOFTWARE, "os.memory", "host memory could not be had", _SUSPECT),
    "job.error.limits": _error(
        Cause.HOST_SOFTWARE, "os.resource", "a limit of the operating system was reached", _SUSPECT, confidence=0.7,
    ),
    "job.error.no_space": _error(
        Cause.HOST_SOFTWARE, "storage.local", "a file system is full", _SUSPECT, scope=Scope.NODE, confidence=0.7,
        corroborate="which mount: a shared one is nobody's node",
    ),
    "job.error.quota": _error(
        Cause.DEPENDENCY, "storage.shared", "the quota on shared storage is used up", scope=_DEP, confidence=0.85,
        remedy=Remedy.DEPENDENCY,
    ),
    "job.error.shared_storage": _error(
        Cause.DEPENDENCY, "storage.shared", "shared storage went away under the program", scope=_DEP, confidence=0.8,
        remedy=Remedy.DEPENDENCY, corroborate="the same on other nodes",
    ),
    "job.error.read_only": _error(
        Cause.HOST_HARDWARE, "storage.local", "a file system became read-only", _SUSPECT, scope=Scope.NODE, confidence=0.6,
        remedy=Remedy.VALIDATE, corroborate="I/O errors in the kernel log",
    ),
    "job.error.io": _error(
        Cause.UNKNOWN, "storage.local", "reading or writing failed below the file system", _SUSPECT, scope=Scope.NODE,
        confidence=0.5, remedy=Remedy.VALIDATE, corroborate="kernel log: which drive; or a shared mount, then nobody's node",
    ),
    "job.error.dns": _error(
        Cause.DEPENDENCY, "dependency.service", "a name was not resolved", _SUSPECT, scope=_DEP, confidence=0.7,
        remedy=Remedy.DEPENDENCY,
    ),
    "job.error.dependency": _error(
        Cause.DEPENDENCY, "dependency.service", "a service that the program needs did not answer or refused", scope=_DEP,
        confidence=0.7, remedy=Remedy.DEPENDENCY, corroborate="the same from other nodes",
    ),
    "job.error.refused": _error(
        Cause.DEPENDENCY, "dependency.service", "nobody listened at an address that the program needs", _SUSPECT, scope=_DEP,
        confidence=0.4, corroborate="the address of a peer rank: then that rank had ended before",
    ),
}  # fmt: skip

ROWS: dict[str, Row] = {**_HANGS, **_COMM, **_ENDS, **_STEPS, **_DEVICE_ERRORS, **_ERRORS}
