"""Rows of what a node's agent finds out by itself: probes that hang, dependencies, clock, memory pressure. Data only."""

from keepstep.core.catalog.row import Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause, Urgency

_SELF = "project"

ROWS: dict[str, Row] = {
    # ---- probes: that a look hangs is a finding of its own
    "probe.hung": row(
        Cause.HOST_SOFTWARE, "os.hang", Scope.NODE, Verdict.SUSPECT,
        "a look at the node did not come back in time: what it asked hangs", urgency=Urgency.NEXT_CHECKPOINT,
        remedy=Remedy.REBOOT, confidence=0.6, source="field reports",
        corroborate="a stalled job on the node, or kernel lines of hung tasks; a busy node is only slow",
    ),
    "probe.hung.nvml": row(
        Cause.HOST_SOFTWARE, "gpu.driver_hang", Scope.NODE, Verdict.SUSPECT,
        "the GPU driver does not answer", urgency=Urgency.NEXT_CHECKPOINT, remedy=Remedy.REBOOT, confidence=0.7,
        source="field reports", corroborate="the job stalls as well: then it is urgent",
    ),
    "probe.hung.amd": row(
        Cause.HOST_SOFTWARE, "gpu.driver_hang", Scope.NODE, Verdict.SUSPECT,
        "the GPU driver does not answer", urgency=Urgency.NEXT_CHECKPOINT, remedy=Remedy.REBOOT, confidence=0.7,
        source="field reports", corroborate="the job stalls as well: then it is urgent",
    ),
    "probe.failing": row(
        Cause.UNKNOWN, "unclassified", Scope.NODE, Verdict.WATCH,
        "a source of signals fails again and again: what it looks at is not seen now", confidence=0.3, source=_SELF,
    ),
    # ---- mounts
    "mount.hung": row(
        Cause.DEPENDENCY, "storage.shared", Scope.DEPENDENCY, Verdict.FAULTY,
        "a network file system does not answer on this mount", remedy=Remedy.DEPENDENCY, source="field reports",
        corroborate="other nodes with the same server; one node alone has a network of its own to blame",
    ),
    "mount.hung.local": row(
        Cause.HOST_HARDWARE, "storage.local", Scope.NODE, Verdict.SUSPECT,
        "a local file system does not answer", urgency=Urgency.NEXT_CHECKPOINT, remedy=Remedy.INSPECT, confidence=0.6,
        source="field reports", corroborate="kernel lines of the drive below it",
    ),
    "mount.failed": row(
        Cause.DEPENDENCY, "storage.shared", Scope.DEPENDENCY, Verdict.FAULTY,
        "a file system that jobs need is not there, or refuses", remedy=Remedy.DEPENDENCY, confidence=0.7, source=_SELF,
        corroborate="other nodes with the same mount",
    ),
    "mount.slow": row(
        Cause.DEPENDENCY, "storage.shared", Scope.DEPENDENCY, Verdict.WATCH,
        "a file system answers, and late", confidence=0.5, source=_SELF,
    ),
    "mount.ok": row(
        Cause.DEPENDENCY, "informational", Scope.DEPENDENCY, Verdict.BENIGN,
        "a file system answers again", confidence=0.9, source=_SELF,
    ),
    "lustre.unhealthy": row(
        Cause.DEPENDENCY, "storage.shared", Scope.DEPENDENCY, Verdict.FAULTY,
        "the file system's own client says that it is not healthy", remedy=Remedy.DEPENDENCY, source="field reports",
        corroborate="other nodes of the same file system",
    ),
    # ---- dependencies; dependency.down stands with the generic rows
    "dependency.slow": row(
        Cause.DEPENDENCY, "dependency.service", Scope.DEPENDENCY, Verdict.WATCH,
        "a declared dependency answers, and late", confidence=0.5, source=_SELF,
    ),
    "dependency.ok": row(
        Cause.DEPENDENCY, "informational", Scope.DEPENDENCY, Verdict.BENIGN,
        "a declared dependency answers again", confidence=0.9, source=_SELF,
    ),
    # ---- services of the node that a user declares
    "service.down": row(
        Cause.HOST_SOFTWARE, "os.service", Scope.NODE, Verdict.SUSPECT,
        "a declared service of the node does not run", urgency=Urgency.NEXT_CHECKPOINT, remedy=Remedy.RESTART_SERVICE,
        confidence=0.7, source=_SELF,
    ),
    "service.ok": row(
        Cause.HOST_SOFTWARE, "informational", Scope.NODE, Verdict.BENIGN,
        "a declared service of the node runs again", confidence=0.9, source=_SELF,
    ),
    # ---- the host itself
    "host.reboot": row(
        Cause.HOST_SOFTWARE, "informational", Scope.NODE, Verdict.WATCH,
        "the node has booted since its agent ran last", confidence=0.5, source=_SELF,
        corroborate="whether somebody asked for it",
    ),
    "host.clock_step": row(
        Cause.HOST_SOFTWARE, "config.drift", Scope.NODE, Verdict.WATCH,
        "the wall clock jumped: time stamps before and after do not compare", remedy=Remedy.FIX_CONFIG, confidence=0.6,
        source="field reports", corroborate="once after boot is ordinary",
    ),
    "host.clock_skew": row(
        Cause.HOST_SOFTWARE, "config.drift", Scope.NODE, Verdict.WATCH,
        "the wall clock is off by more than its discipline allows", remedy=Remedy.FIX_CONFIG, confidence=0.6,
        source="field reports",
    ),
    "host.memory_pressure": row(
        Cause.HOST_SOFTWARE, "os.resource", Scope.NODE, Verdict.WATCH,
        "processes wait for memory for much of their time", confidence=0.4, source="kernel pressure counters",
        corroborate="the memory that the job itself takes; an out-of-memory kill often follows",
    ),
    "host.io_pressure": row(
        Cause.HOST_SOFTWARE, "os.resource", Scope.NODE, Verdict.WATCH,
        "processes wait for storage for much of their time", confidence=0.3, source="kernel pressure counters",
        corroborate="checkpoints being written are ordinary",
    ),
    "host.cpu_pressure": row(
        Cause.HOST_SOFTWARE, "os.resource", Scope.NODE, Verdict.WATCH,
        "processes wait for a processor for much of their time", confidence=0.3, source="kernel pressure counters",
        corroborate="a straggling rank on the node",
    ),
    "host.oom_kill": row(
        Cause.HOST_SOFTWARE, "os.memory", Scope.NODE, Verdict.WATCH,
        "the kernel ended processes for want of memory", confidence=0.5, source="kernel counters",
        corroborate="the kernel log says whose memory and whose limit it was",
    ),
    "host.zombies": row(
        Cause.HOST_SOFTWARE, "os.resource", Scope.NODE, Verdict.WATCH,
        "very many ended processes are not collected by their parents", confidence=0.3, source=_SELF,
    ),
    # ---- the agent about itself
    "agent.overrun": row(
        Cause.UNKNOWN, "informational", Scope.NODE, Verdict.WATCH,
        "signals came faster than the agent takes them: some were counted only", confidence=0.3, source=_SELF,
    ),
    "agent.heavy": row(
        Cause.UNKNOWN, "informational", Scope.NODE, Verdict.WATCH,
        "the agent itself takes more of the node than it may", confidence=0.5, source=_SELF,
    ),
}  # fmt: skip
