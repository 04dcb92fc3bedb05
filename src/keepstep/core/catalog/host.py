"""Rows of the machine under the job: processors, memory, the kernel, its limits, services. Data only.

Programs that die are the job's (``Scope.JOB``): nothing is isolated for them.
"""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_HW, _SW, _APP = Cause.HOST_HARDWARE, Cause.HOST_SOFTWARE, Cause.APPLICATION
_NODE = Scope.NODE
_NOW, _SOON, _END = Urgency.NOW, Urgency.NEXT_CHECKPOINT, Urgency.JOB_END

_PROCESSORS: dict[str, Row] = {
    "host": row(_SW, "os.kernel", _NODE, Verdict.WATCH, "something about the machine", confidence=0.3, source="project"),
    "host.mce.fatal": row(
        _HW, "cpu", _NODE, Verdict.FAULTY, "a processor stopped on an error that it could not contain", urgency=_NOW,
        confidence=0.95, remedy=Remedy.INSPECT, corroborate="the BMC's event log, EDAC", source="signals S159",
    ),
    "host.mce.uncorrected": row(
        _HW, "cpu", _NODE, Verdict.FAULTY, "data was lost in a processor or in memory; what used it is ended", urgency=_NOW,
        confidence=0.85, remedy=Remedy.INSPECT, corroborate="the BMC's event log, EDAC", source="signals S159",
    ),
    "host.mce.corrected": row(
        _HW, "cpu", _NODE, Verdict.WATCH, "a processor corrected an error by itself", confidence=0.8,
        corroborate="its rate and the bank", source="kernel",
    ),
    "host.cper.fatal": row(
        _HW, "cpu", _NODE, Verdict.FAULTY, "the firmware reports a fatal hardware error", urgency=_NOW, confidence=0.95,
        remedy=Remedy.INSPECT, corroborate="the section that follows names the part", source="signals S159",
    ),
    "host.cper.recoverable": row(
        _HW, "cpu", _NODE, Verdict.SUSPECT, "the firmware reports an uncorrected error that the system may survive",
        urgency=_SOON, confidence=0.6, remedy=Remedy.INSPECT, source="firmware-first records",
    ),
    "host.cper.corrected": row(
        _HW, "cpu", _NODE, Verdict.WATCH, "the firmware reports an error that the hardware corrected", confidence=0.8,
        source="firmware-first records",
    ),
    "host.cper.previous": row(
        _HW, "cpu", _NODE, Verdict.SUSPECT, "the firmware kept an error from the boot before: why the machine went down",
        confidence=0.6, remedy=Remedy.INSPECT, source="firmware-first records",
    ),
    "host.cper.section": row(
        _HW, "cpu", _NODE, Verdict.BENIGN, "which part a firmware's record is about", source="firmware-first records",
    ),
    "host.cper.device": row(
        _HW, "gpu.pcie", _NODE, Verdict.BENIGN, "which device a firmware's record is about", source="firmware-first records",
    ),
    "host.cpu.hot": row(
        _HW, "thermal.fan", _NODE, Verdict.WATCH, "a processor slowed down because it was too hot", confidence=0.6,
        remedy=Remedy.INSPECT, corroborate="the step time; fans and inlet as the BMC sees them", source="kernel",
    ),
    "host.thermal.critical": row(
        _HW, "thermal.fan", _NODE, Verdict.FAULTY, "a zone is so hot that the machine shuts itself down", urgency=_NOW,
        confidence=0.9, remedy=Remedy.INSPECT, source="kernel",
    ),
    "host.nmi.unknown": row(
        _HW, "cpu", _NODE, Verdict.WATCH, "an interrupt that hardware raises for errors came without a reason",
        confidence=0.4, source="kernel",
    ),
}  # fmt: skip

_MEMORY: dict[str, Row] = {
    "host.memory.uncorrected": row(
        _HW, "dram.host", _NODE, Verdict.FAULTY, "host memory lost data that could not be corrected", urgency=_NOW,
        confidence=0.95, remedy=Remedy.REPLACE, corroborate="the slot in the BMC's event log", source="signals S186",
    ),
    "host.memory.corrected": row(
        _HW, "dram.host", _NODE, Verdict.WATCH, "host memory corrected an error", confidence=0.8,
        corroborate="its rate on one module", source="signals S186",
    ),
    "host.memory.offlined": row(
        _HW, "dram.host", _NODE, Verdict.WATCH, "a page of host memory with many corrected errors was taken out of use",
        confidence=0.7, source="kernel",
    ),
}  # fmt: skip

_KERNEL: dict[str, Row] = {
    "host.panic": row(
        _SW, "os.kernel", _NODE, Verdict.FAULTY, "the kernel stopped", urgency=_NOW, confidence=0.95,
        remedy=Remedy.REBOOT, corroborate="what stands before it says why", source="signals S163",
    ),
    "host.oops": row(
        _SW, "os.kernel", _NODE, Verdict.FAULTY,
        "the kernel made an error in its own code or data: the process is gone and locks may be held for ever",
        urgency=_NOW, confidence=0.85, remedy=Remedy.REBOOT, source="kernel",
    ),
    "host.kernel_corrupt": row(
        _SW, "os.kernel", _NODE, Verdict.SUSPECT, "the kernel found its own bookkeeping damaged", urgency=_SOON,
        confidence=0.7, remedy=Remedy.REBOOT, corroborate="bad memory looks the same", source="kernel",
    ),
    "host.exception": row(
        _SW, "os.kernel", _NODE, Verdict.SUSPECT, "a processor of a compute node raised an exception in kernel mode",
        urgency=_SOON, confidence=0.5, remedy=Remedy.VALIDATE, source="RAS streams",
    ),
    "host.hard_lockup": row(
        _SW, "os.kernel", _NODE, Verdict.FAULTY, "a processor does not even take interrupts any more", urgency=_NOW,
        confidence=0.9, remedy=Remedy.REBOOT, source="kernel",
    ),
    "host.soft_lockup": row(
        _SW, "os.kernel", _NODE, Verdict.SUSPECT, "a processor ran in the kernel for many seconds without a pause",
        urgency=_SOON, confidence=0.7, remedy=Remedy.REBOOT, corroborate="repeats; the step time", source="signals S161",
    ),
    "host.hung_task": row(
        _SW, "os.kernel", _NODE, Verdict.WATCH, "a task has waited in the kernel for minutes", confidence=0.6,
        corroborate="its stack: a shared file system is not this node's fault; the trainer itself: a hang",
        source="signals S162",
    ),
    "host.rcu_stall": row(
        _SW, "os.kernel", _NODE, Verdict.SUSPECT, "a processor has not passed a quiet state for long", urgency=_SOON,
        confidence=0.6, remedy=Remedy.REBOOT, corroborate="lock-ups on the same processor", source="kernel",
    ),
    "host.workqueue_lockup": row(
        _SW, "os.kernel", _NODE, Verdict.WATCH, "deferred work of the kernel has not run for long", confidence=0.5,
        corroborate="lock-ups on the same processor", source="kernel",
    ),
    "host.netdev_stuck": row(
        _SW, "os.kernel", _NODE, Verdict.WATCH, "a network interface cannot be taken away: containers may not start",
        confidence=0.6, remedy=Remedy.REBOOT, source="node problem detector",
    ),
    "host.irq_lost": row(
        _SW, "os.kernel", _NODE, Verdict.WATCH, "an interrupt that nobody handled was switched off", confidence=0.5,
        source="kernel",
    ),
    "host.page_allocation": row(
        _SW, "os.memory", _NODE, Verdict.WATCH, "the kernel found no memory in one piece", confidence=0.5, source="kernel",
    ),
    "host.clock_unstable": row(
        _SW, "config.drift", _NODE, Verdict.WATCH, "the kernel gave up a clock that ran wrong", confidence=0.5,
        source="kernel",
    ),
    "host.shutdown": row(
        Cause.OPERATOR, "maintenance", _NODE, Verdict.BENIGN, "somebody ended or restarted the machine in order",
        confidence=0.9, source="kernel",
    ),
    "host.sysrq": row(
        Cause.OPERATOR, "maintenance", _NODE, Verdict.BENIGN, "somebody asked the kernel to crash or to reset",
        confidence=0.9, source="kernel",
    ),
}  # fmt: skip

_LIMITS: dict[str, Row] = {
    f"host.limit.{name}": row(
        _SW, "os.resource", _NODE, Verdict.WATCH, text, urgency=_END, confidence=0.8, remedy=Remedy.FIX_CONFIG,
        source="signals S169; kernel",
    )
    for name, text in {
        "files": "the machine has as many files open as it allows",
        "conntrack": "the table of connections is full: packets are dropped",
        "neighbours": "the table of neighbours is full: new peers cannot be reached",
        "pids": "a group has as many processes as it may have",
        "tcp_memory": "the memory for TCP is used up",
    }.items()
}  # fmt: skip

_PROGRAMS: dict[str, Row] = {
    "host.oom.cgroup": row(
        _APP, "os.memory", Scope.JOB, Verdict.SUSPECT, "a process was killed because its group reached its memory limit",
        confidence=0.85, corroborate="whether it was a rank", source="signals S164",
    ),
    "host.oom.global": row(
        _SW, "os.memory", Scope.JOB, Verdict.SUSPECT, "a process was killed because the machine had no memory left",
        confidence=0.75, corroborate="who used the memory", source="signals S164",
    ),
    "host.oom.killed": row(
        _APP, "os.memory", Scope.JOB, Verdict.SUSPECT, "a process was killed for memory; the line does not say whose limit",
        confidence=0.7, source="signals S164",
    ),
    "host.oom.panic": row(
        _SW, "os.memory", _NODE, Verdict.FAULTY, "the kernel stopped because there was no memory left", urgency=_NOW,
        confidence=0.9, remedy=Remedy.REBOOT, source="kernel",
    ),
    "host.oom.note": row(
        _APP, "os.memory", Scope.JOB, Verdict.BENIGN, "memory is short and the kernel looks for a victim",
        confidence=0.5, source="kernel",
    ),
    "host.oom.limit": row(
        _APP, "os.memory", Scope.JOB, Verdict.BENIGN, "the group whose memory limit was reached", source="kernel",
    ),
    "host.segfault.nccl": row(
        _APP, "software.nccl", Scope.JOB, Verdict.SUSPECT, "a program crashed inside the collective library",
        confidence=0.85, source="signals S152",
    ),
    "host.segfault.library": row(
        _APP, "software.driver", Scope.JOB, Verdict.SUSPECT, "a program crashed inside a driver's or a vendor's library",
        confidence=0.7, source="kernel",
    ),
    "host.segfault": row(
        _APP, "software.app", Scope.JOB, Verdict.WATCH, "a program crashed in native code",
        confidence=0.6, corroborate="whether it was a rank; the same on many nodes", source="kernel",
    ),
}  # fmt: skip

_SERVICES: dict[str, Row] = {
    "host.service": row(
        _SW, "os.service", _NODE, Verdict.WATCH, "a service that nodes need has failed", confidence=0.6,
        remedy=Remedy.RESTART_SERVICE, source="signals S191",
    ),
    "host.service.up": row(_SW, "os.service", _NODE, Verdict.BENIGN, "a service runs", source="systemd"),
    "host.service.fabric_manager": row(
        _SW, "nvlink.fabric", _NODE, Verdict.FAULTY, "the service that sets up the links between the cards has failed",
        urgency=_NOW, confidence=0.85, remedy=Remedy.RESTART_SERVICE,
        corroborate="only machines with NVSwitches need it", source="signals S142",
    ),
    "host.service.imex": row(
        _SW, "nvlink.fabric", _NODE, Verdict.SUSPECT, "the service that shares memory over a rack's links has failed",
        urgency=_NOW, confidence=0.6, remedy=Remedy.RESTART_SERVICE, corroborate="only racks with NVLink domains need it",
        source="signals S143",
    ),
    **{
        f"host.service.{name}": row(
            _SW, "os.service", _NODE, Verdict.SUSPECT, f"{text} has failed: no new work can be placed here",
            confidence=0.7, remedy=Remedy.RESTART_SERVICE, corroborate="whether it came back", source="signals S191",
        )
        for name, text in {
            "slurm": "the node's scheduler daemon",
            "kubelet": "the node's Kubernetes agent",
            "container_runtime": "the container runtime",
        }.items()
    },
}  # fmt: skip

ROWS: dict[str, Row] = {**_PROCESSORS, **_MEMORY, **_KERNEL, **_LIMITS, **_PROGRAMS, **_SERVICES}
