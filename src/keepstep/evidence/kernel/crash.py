"""The kernel and programs in trouble: panic, oops, lock-ups, hung tasks, stalls, native crashes, the memory killer.

Owns the names of the process in each line (``process/123``). Must not decide whose process it was, nor whether a hung task
waits for storage; rules do (``core/combine/host.py``).
"""

from collections.abc import Sequence

from keepstep.core.observation import Observation
from keepstep.evidence.kernel.frames import Record
from keepstep.evidence.kernel.patterns import Values, first, hints, pattern

_PROCESS = r"(?P<process>[^\n]{1,64}?):(?P<pid>\d{1,9})"


def _oom(values: Values) -> str:
    return "host.oom.cgroup" if values["constraint"] == "CONSTRAINT_MEMCG" else "host.oom.global"


def _segfault(values: Values) -> str:
    library = values.get("library", "")
    if library.startswith("libnccl"):
        return "host.segfault.nccl"
    if library.startswith(
        ("libcuda", "libcudart", "libnvidia", "libcudnn", "libcublas", "libibverbs", "libmlx5", "libucp", "libuct")
    ):
        return "host.segfault.library"
    return "host.segfault"


_LOCK_UPS = (
    pattern(
        "host.soft_lockup", "soft lockup",
        rf"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<value>\d+)s! \[{_PROCESS}\]",
    ),
    pattern("host.soft_lockup", "soft lockup", r"BUG: soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<value>\d+)s"),
    pattern(
        "host.hard_lockup", "hard LOCKUP",
        r"(?:Watchdog detected hard LOCKUP on cpu|detected hard LOCKUP on other CPUs) ?(?P<cpu>\d+)",
    ),
    pattern(
        "host.hung_task", "for more than",
        rf"\btask {_PROCESS} blocked (?:in I/O wait )?for more than (?P<value>\d+) seconds",
    ),
    pattern(
        "host.rcu_stall", "stall",
        r"(?:rcu(?:_\w+)?: )?(?:INFO: )?rcu_\w+ (?:detected|self-detected)(?: expedited)? stalls? on CPU",
    ),
    pattern(
        "host.rcu_stall", "kthread starved for",
        r"rcu_\w+ kthread (?:timer wakeup didn't happen|starved) for (?P<value>\d+) jiffies",
    ),
)  # fmt: skip

_STUCK = (
    pattern(
        "host.workqueue_lockup", "workqueue lockup",
        r"BUG: workqueue lockup - pool [^\n]{0,80}? stuck for (?P<value>\d+)s",
    ),
    pattern(
        "host.netdev_stuck", "unregister_netdevice",
        r"unregister_netdevice: waiting for (?P<iface>\S{1,15}) to become free",
    ),
    pattern("host.irq_lost", "nobody cared", r"irq (?P<value>\d+): nobody cared"),
    pattern(
        "host.page_allocation", "page allocation failure",
        r"(?P<process>[^\n:]{1,64}): page allocation failure: order:(?P<value>\d+)",
    ),
)  # fmt: skip

_CRASHES = (
    pattern("host.mce.fatal", "SError Interrupt", r"SError Interrupt on CPU ?(?P<cpu>\d+)", "cpu/{cpu}"),
    pattern(
        "host.oom.panic", "anic - not syncing: ",
        r"Kernel [Pp]anic - not syncing: (?P<what>Out of memory[^\n]{0,100})",
    ),
    pattern("host.panic", "anic - not syncing", r"Kernel [Pp]anic - not syncing(?:: (?P<what>[^\n]{1,100}))?"),
    pattern("host.panic", "rts panic!", r"\brts panic! - stopping execution", "", ("ras", "kernel")),
    pattern(
        "host.panic", "rts: kernel terminated",
        r"\brts: kernel terminated for reason (?P<what>\d+)", "", ("ras", "kernel"),
    ),
    pattern(
        "host.exception", " interrupt",
        r"^(?P<what>data TLB error|(?:data|instruction) storage|machine check) interrupt$", "", ("ras",),
    ),
    pattern(
        "host.oops", "BUG: ",
        r"BUG: (?:unable to handle (?:kernel )?(?:NULL pointer dereference|paging request|page fault)|kernel NULL"
        r" pointer dereference)",
    ),
    pattern("host.oops", "kernel BUG at", r"kernel BUG at (?P<where>\S{1,100}?:\d+)!"),
    pattern(
        "host.oops", "Oops",
        r"(?:^|: )Oops: [0-9a-f]{4,16} \[#(?P<number>\d+)\]|Internal error: Oops[^\n]{0,40}\[#(?P<other>\d+)\]",
    ),
    pattern(
        "host.oops", "[#",
        r"(?:general protection fault|invalid opcode|divide error|stack segment|double fault|int3|stack guard page"
        r" was hit|synchronous external abort)[^\n]{0,80}: "
        r"[0-9a-f]{4} \[#(?P<number>\d+)\]",
    ),
    pattern(
        "host.oops", "Unable to handle kernel",
        r"Unable to handle kernel (?:NULL pointer dereference|paging request|read from unreadable memory) at virtual"
        r" address",
    ),
    pattern("host.kernel_corrupt", "BUG: Bad ", r"BUG: Bad (?P<what>page state|page map|rss-counter state)"),
    pattern(
        "host.kernel_corrupt", "corruption",
        r"\b(?:list_(?:add|del)|slab) corruption\b|BUG: (?:KASAN|corrupted list)",
    ),
)  # fmt: skip

_PROGRAMS = (
    pattern(
        _segfault, "segfault at",
        r"(?:^|[\] ])(?:(?P<process>[^\[\]\n]{1,40})\[(?P<pid>\d+)\]:? )?segfault at [0-9a-f]+ ip [0-9a-f]+ sp "
        r"[0-9a-f]+ error [0-9a-f]+"
        r"(?: in (?P<library>[^\[\s]{1,80}))?", "process/{pid}",
    ),
    pattern(
        _segfault, "traps: ",
        r"traps: (?P<process>[^\[\]\n]{1,40})\[(?P<pid>\d+)\]:? (?:general protection(?: fault)?|trap [\w ]{3,20})"
        r" ip:[0-9a-f]+ sp:[0-9a-f]+"
        r" error:[0-9a-f]+(?: in (?P<library>[^\[\s]{1,80}))?", "process/{pid}",
    ),
    pattern(
        "host.segfault", "dumped core",
        r"Process (?P<pid>\d+) \((?P<process>[^)\n]{1,40})\) of user \d+ (?:terminated abnormally|dumped core)",
        "process/{pid}", ("systemd-coredump",),
    ),
)  # fmt: skip

_MEMORY = (
    pattern(
        _oom, "oom-kill:constraint=",
        r"oom-kill:constraint=(?P<constraint>CONSTRAINT_\w{3,20}),(?:[^\n]{0,600}?oom_memcg=(?P<cgroup>"
        r"[^,\n]{1,400}),)?[^\n]{0,600}?task_memcg=(?P<task_cgroup>[^,\n]{1,400})"
        r",task=(?P<process>[^\n]{1,64}?),pid=(?P<pid>\d+),uid=", "process/{pid}",
    ),
    pattern(
        "host.oom.cgroup", "emory cgroup out of memory",
        r"[Mm]emory cgroup out of memory: Kill(?:ed)? process (?P<pid>\d+)(?:, UID \d+)?,? \((?P<process>"
        r"[^\n]{1,64}?)\)", "process/{pid}",
    ),
    pattern(
        "host.oom.global", "ut of memory",
        r"Out of memory(?: \(\w+\))?: Kill(?:ed)? process (?P<pid>\d+)(?:, UID \d+)?,? \((?P<process>[^\n]{1,64}?)\)",
        "process/{pid}",
    ),
    pattern(
        "host.oom.killed", "Killed process",
        r"Killed process (?P<pid>\d+)(?:, UID \d+)?,? \((?P<process>[^\n]{1,64}?)\)(?:$|[, ])", "process/{pid}",
    ),
    pattern(
        "host.oom.note", "invoked oom-killer",
        r"^(?:.{0,60} )?(?P<process>\S[^\n]{0,63}?) invoked oom-killer: gfp_mask=",
    ),
    pattern(
        "host.oom.limit", "killed as a result of limit of",
        r"Task in (?P<task_cgroup>\S+) killed as a result of limit of (?P<cgroup>(?P<apart>\S+))",
    ),
    pattern(
        "host.oom.cgroup", "due to memory pressure",
        r"Killed (?P<cgroup>/\S{1,300}) due to memory (?:pressure|used)", "", ("systemd-oomd",),
    ),
    pattern(
        "host.oom.note", "System OOM encountered",
        r"System OOM encountered, victim process: (?P<process>\S+), pid: (?P<pid>\d+)",
        "process/{pid}", ("kubelet",),
    ),
)  # fmt: skip

PATTERNS = (*_LOCK_UPS, *_STUCK, *_CRASHES, *_PROGRAMS, *_MEMORY)

HINTS = hints(PATTERNS)


def match(record: Record) -> Sequence[Observation] | None:
    return first(PATTERNS, record)
