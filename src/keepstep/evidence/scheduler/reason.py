"""What a drain reason is about. Owns the words; a reason is free text in any language, written by people, scripts and the
scheduler itself, with blanks or underscores. It never proves a fault.
"""

import re

from msgspec import Struct

_SET_BY = re.compile(r"\s*\[([^\[\]@\s]{1,64})@([^\[\]\s]{1,40})\]\s*$")
_NOTHING = ("", "none", "n/a", "(null)", "null", "unknown")
_PLANNED = re.compile(
    r"\b(?:maint\w*|upgrad\w*|updat\w*|re-?install\w*|re-?imag\w*|patch\w*|planned|scheduled|decommission\w*|reserv\w*|"
    r"migrat\w*|provision\w*|new nodes?|power ?sav\w*|on request|relocat\w*|wartung\w*|mantenimiento|manutenzione|entretien|"
    r"burn-?in|benchmark\w*|acceptance)\b|维护|維護|升级|计划|メンテ|保守|점검|обслуживани"
)
_FAULT = re.compile(
    r"fail|fault|error|\bbad\b|broken|\bdead\b|\bdown\b|\blost\b|missing|\bhang|\bhung\b|stuck|\bxid|uncorrect|not respond|"
    r"crash|degrad|flap|overheat|\bleak|fallen|blocked|故障|错误|坏"
)
_XID = re.compile(r"\bs?xid\D{0,12}(\d{1,3})\b")
_XIDS: dict[int, str] = {
    79: "gpu_fallen", **dict.fromkeys((48, 63, 64, 92, 94, 95, 140, 171, 172), "gpu_memory"),
    **dict.fromkeys((61, 62, 119, 120), "gpu_firmware"), **dict.fromkeys((74, *range(144, 151)), "nvlink"),
}  # fmt: skip
_GPU = r"(?:gpus?|cuda\w*|nvidia\S*|nvml|nvsmi|dcgm\w*|accelerators?|rocm\w*|amdgpu|h[12]00|a100|b[23]00|mi\d{3}\w?)"

_HEAT = r"(?:temp|therm|\bhot\b|heat|throttl)"
_PATTERNS: tuple[tuple[str, str], ...] = (
    ("gpu_fallen", r"fallen off|off the bus"),
    (
        "gpu_lost",
        rf"\b{_GPU}\b.{{0,40}}\b(?:missing|lost|not found|disappear\w*|count|lower|vanish\w*)|gres/gpu|"
        rf"\b(?:missing|lost|fewer|only \d+|\d+ ?/ ?\d+|\d+ of \d+)\b.{{0,24}}\b{_GPU}\b",
    ),
    ("gpu_memory", rf"\b{_GPU}\b.{{0,40}}\b(?:memory|mem|ecc|dbe)\b|\b(?:ecc|dbe)\b.{{0,40}}\b{_GPU}\b"),
    ("memory", r"\b(?:dimms?|edac|mce|dram|machine check|host memory|memory errors?|bad memory|bad ram|mem err\w*)\b"),
    ("gpu_memory", r"\b(?:ecc|dbe|sbe|hbm|row ?remap\w*|remapped rows?|retired pages?|page retire\w*)\b"),
    ("nvlink", r"\b(?:nvlinks?|nvswitch\w*|fabric ?manager|imex|nvl)\b"),
    ("gpu_firmware", r"\b(?:gsp|inforom|vbios)\b"),
    ("gpu_thermal", rf"\b{_GPU}\b.{{0,40}}{_HEAT}|{_HEAT}.{{0,40}}\b{_GPU}\b"),
    ("gpu", rf"\b{_GPU}\b|\bs?xid\b"),
    (
        "shared_storage",
        r"\b(?:nfs\w*|lustre|gpfs|beegfs|weka\w*|cephfs?|vast|stale file|automount|mounts?|mounted|"
        r"shared (?:fs|storage))\b",
    ),
    (
        "config",
        r"low real ?memory|low socket|low tmp ?disk|low cpu|low core|invalid reg|mismatch|\bdrift\b|misconfig|"
        r"wrong (?:version|driver|config)",
    ),
    (
        "disk",
        r"\b(?:disks?|nvmes?\d*|ssds?|hdds?|raid\d*|smart|no space|disk full|file ?systems?|read-?only|i/o errors?|"
        r"xfs|ext4)\b|/tmp\b",
    ),
    (
        "nic",
        r"\b(?:ib\d*|infiniband|hcas?|mlx\w*|nics?|roce|rdma|ethernet|eth\d+|bond\d+|cables?|transceivers?|optics?|"
        r"slingshot|cxi\d?|hsn\d?|opa|hfi\d?|efa|link (?:down|flap\w*|errors?)|links? down|"
        r"port (?:down|flap\w*|errors?)|(?:ib|leaf|tor|network) switch|network|rail\d*)\b",
    ),
    ("power", r"\b(?:psus?\d*|power ?suppl\w*|power (?:loss|lost|fail\w*|fault|brake|outage)|pdu|brownout)\b"),
    ("thermal", r"\b(?:temp|temps|temperature|thermal\w*|fans?\d*|cooling|overheat\w*|coolant|leak\w*|cdu)\b"),
    (
        "kernel",
        r"kill task failed|\b(?:unkillable|d[- ]state|blocked|hung|hang\w*|stuck|lock-?ups?|panic\w*|oops|kernel|"
        r"zombies?|defunct|uninterruptible)\b",
    ),
    ("cpu", r"\b(?:cpus?\d*|processors?|sockets?)\b"),
    (
        "loss",
        r"not respond|no response|unreachable|unexpectedly rebooted|lost contact|no ping|cannot ssh|"
        r"ssh (?:fail|timeout)|\boffline\b|node (?:is )?(?:dead|down)",
    ),
    (
        "service",
        r"\b(?:prolog\w*|epilog\w*|munged?|slurmd|slurmstepd|nhc|health ?checks?|systemd|services?|daemons?|"
        r"launch failure|complete failure|batch job)\b|\bcheck\w* fail",
    ),
    ("hardware", r"\b(?:hardware|hw|broken|faulty|defect\w*|mainboard|motherboard|baseboard|bmc|pcie?)\b"),
)
"""In order: the first that matches names the topic."""
_TOPICS = tuple((name, re.compile(pattern)) for name, pattern in _PATTERNS)


class Reason(Struct, frozen=True, kw_only=True):
    text: str
    topic: str
    """What it names; ``planned``, ``loss``, or empty where it names nothing."""
    by: str = ""
    since: str = ""


def read(text: str) -> Reason:
    """A reason as the scheduler shows it, with or without who set it and when."""
    text = text.strip()[:1000]
    by = since = ""
    if match := _SET_BY.search(text):
        by, since = match.groups()
        text = text[: match.start()].strip()
    return Reason(text=text, topic=topic(text), by=by, since=since)


def topic(text: str) -> str:
    words = " ".join(text.lower().replace("_", " ").split())
    if words in _NOTHING:
        return ""
    if _PLANNED.search(words) and not _FAULT.search(words):
        return "planned"
    if match := _XID.search(words):
        return _XIDS.get(int(match.group(1)), "gpu")
    for name, pattern in _TOPICS:
        if pattern.search(words):
            return name
    return ""
