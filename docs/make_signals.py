"""Writes docs/reference/signals-and-classes.md and liveness.md from the catalogue and the table of silence. ``--check`` only
says whether they are current.

Owns the pages' form and the words for classes; every scope, verdict, key and row on them is read from the code.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from textwrap import wrap
from typing import Any

from keepstep.core import liveness
from keepstep.core.catalog import CATALOG, FAMILIES
from keepstep.core.catalog.row import Mode, Remedy, Scope, Verdict
from keepstep.core.incident import Cause, Urgency
from keepstep.core.observation import PART_KINDS

PAGES = Path(__file__).resolve().parent / "reference"
LINE = 127

HEAD = """# Signals and failure classes

Generated from `src/keepstep/core/catalog` by `docs/make_signals.py`; do not edit it, run `make docs`.

A **signal** is what one source said about one part: an Xid of the kernel log, a port that is down, a rank that hangs. Its key
names its row of the catalogue: `keepstep catalog explain xid.79` prints one, `keepstep catalog list` all of them,
`keepstep catalog rules` the rules that change a verdict in company. Every row has two separate verdicts: what is wrong with the
*resource*, and how urgent that is for the *running job*. To change a row: [how-to](../how-to/change-what-a-signal-means.md).
"""

SCOPES: dict[Scope, str] = {
    Scope.CARD: "one accelerator: held alone; other devices of its node go on",
    Scope.NIC: "an adapter or a port of it; its node is held",
    Scope.DISK: "a drive; its node is held",
    Scope.NODE: "the node as a whole",
    Scope.RACK: "what several nodes share: rack, power, cooling; once that is known to be at fault, no further member is held",
    Scope.FABRIC: "a switch, or a network as a whole; the same holds",
    Scope.JOB: "the program, a rank, a process: no resource is at fault",
    Scope.DEPENDENCY: "something outside that jobs need: its owner is told, jobs wait, no node is blamed",
    Scope.FLEET: "a driver version, an image, a setting that many nodes share",
}

VERDICTS: dict[Verdict, str] = {
    Verdict.BENIGN: "ordinary; recorded where it helps to understand another signal",
    Verdict.WATCH: "counts into the health score; nothing else happens",
    Verdict.SUSPECT: "could be a fault: needs corroboration before anything is isolated",
    Verdict.FAULTY: "a fault; what its row says is done",
}

URGENCIES: dict[Urgency, tuple[str, str]] = {
    Urgency.NOW: ("the job is restarted now", "`restart_elsewhere` where the resource is held, else `restart`"),
    Urgency.NEXT_CHECKPOINT: ("it may finish and save first", "`move_at_next_checkpoint`"),
    Urgency.JOB_END: ("the resource is seen to when the job is over", "`move_at_job_end`"),
    Urgency.NONE: ("nothing for the job", "`continue`; `restart` where the program itself is the fault"),
}

REMEDIES: dict[Remedy, str] = {
    Remedy.NONE: "nothing beyond the hold",
    Remedy.VALIDATE: "run the gate: it will tell",
    Remedy.RESET_DEVICE: "reset the device",
    Remedy.RESTART_SERVICE: "restart a service of the node",
    Remedy.REBOOT: "reboot the node",
    Remedy.POWER_CYCLE: "take its power away and give it back",
    Remedy.INSPECT: "a person looks: seating, cables, cooling, power",
    Remedy.REPLACE: "replace the part",
    Remedy.FIX_CONFIG: "change a setting",
    Remedy.FACILITY: "whoever runs the building: power, cooling, leak",
    Remedy.DEPENDENCY: "whoever runs what is needed from outside",
}

MODES: dict[Mode, str] = {
    Mode.OBSERVE: "recorded only",
    Mode.SHADOW: "writes into the journal what it would have done",
    Mode.ACT: "acts",
}

CLASSES: dict[str, str] = {
    "bmc": "the management controller itself, or a sensor of it that belongs to no other class",
    "c2c": "the link between processor and accelerator of one module",
    "checkpoint": "state could not be saved or read",
    "comm": "collective communication: lost peers, timeouts, failed initialisation",
    "common_cause": "many parts at once: what they share",
    "config": "settings, versions or inventory that differ from what they should be; wall clocks",
    "cpu": "processor: machine checks, thermal trips",
    "data": "what the job reads",
    "dependency": "a service that jobs need does not answer, or refuses",
    "derived": "a consequence that another part of the same machine shows",
    "dram.host": "host memory",
    "fabric": "the network beyond the node's own port",
    "gpu": "an accelerator",
    "gpu.clock": "clocks below what is asked for",
    "gpu.compute_engine": "an engine's exception: the program's, or the card's where it repeats in one place",
    "gpu.driver_hang": "the driver does not answer",
    "gpu.engine": "an engine beside the compute ones",
    "gpu.fallen_off_bus": "the card does not answer on its bus any more",
    "gpu.firmware": "the card's own controllers",
    "gpu.init": "the card does not come up",
    "gpu.lost": "fewer cards than there should be",
    "gpu.memory": "the card's memory",
    "gpu.memory.contained": "an uncorrectable error that ended only the programs that it touched",
    "gpu.memory.dbe": "an uncorrectable error",
    "gpu.memory.remap": "a row is or will be replaced",
    "gpu.memory.remap_failed": "no spare row is left, or the replacement failed",
    "gpu.memory.sbe_rate": "corrected errors, more than is usual",
    "gpu.memory.uncontained": "an uncorrectable error that may have touched anything on the card",
    "gpu.pcie": "the card's bus link",
    "gpu.power": "the card's power",
    "gpu.recovery_action": "the driver's own recovery action: it wins over the table",
    "gpu.thermal": "the card is too hot",
    "hang": "ranks that stand still",
    "informational": "no failure",
    "leak": "coolant",
    "maintenance": "somebody works on it, or asked for it",
    "nic": "a network adapter",
    "nic.link": "its link: down, flapping, slow, errors",
    "nic.transport": "its traffic: timeouts and retries",
    "node.hw": "the machine's hardware, where no part is named",
    "node.loss": "the node is gone",
    "node.power": "the node's power",
    "noise": "no meaning",
    "nvlink": "links between accelerators, their switches, and the fabric that they make",
    "os": "the operating system",
    "os.hang": "a process or a look that does not come back",
    "os.kernel": "lock-ups, crashes, hung tasks",
    "os.memory": "memory was not enough and the kernel ended processes",
    "os.resource": "disk space, files, descriptors, pressure",
    "os.service": "a service of the node",
    "power": "power supplies and the power of the building",
    "sdc": "wrong results without an error",
    "security": "attestation, confidential computing, keys",
    "software": "the program and its libraries",
    "software.app": "the program's own error",
    "software.driver": "driver and user-space that do not match",
    "storage.local": "a drive or file system of the node",
    "storage.shared": "a file system that many nodes share",
    "straggler": "slower than its peers, or than it was",
    "thermal": "fans, and temperatures that no card owns",
    "unclassified": "known, and not worth a class of its own; or not known at all",
}
"""Class -> what it is. A class that is not listed is what the nearest one above it is."""


def signals() -> str:
    """The page of signals."""
    causes = "\n".join(wrap(", ".join(f"`{cause.value}`" for cause in Cause), LINE))
    parts = [
        HEAD,
        f"Causes are those of [incidents](../how-to/read-an-incident.md):\n{causes}.\n",
        _table("Scope", "How much of the world a signal is about, and so what is isolated.", _pairs(SCOPES)),
        _table("Verdict", "What is wrong with the resource.", _pairs(VERDICTS)),
        _table(
            "Urgency",
            "What the running job should do.",
            [(f"`{urgency.value}`", *words) for urgency, words in URGENCIES.items()],
            ("urgency", "meaning", "job action"),
        ),
        _table(
            "Remedy",
            "What cures the resource. `resource_action` is made of it: `quarantine+REMEDY` where the resource is held, "
            "the remedy alone where it is not, `notify_owner` for a dependency, else `watch` or `none`.",
            _pairs(REMEDIES),
        ),
        _table("Mode", "How far a row or a rule is trusted.", _pairs(MODES)),
        _table(
            "Failure classes", "Dotted, from the general to the special.", _classes(), ("class", "scopes", "meaning")
        ),
        _table(
            "Keys",
            "A key that is not listed has the meaning of what stands before its last dot (`xid.999` that of `xid`), and in the "
            "end that of `unknown`: kept, never acted on.",
            _keys(),
            ("begins with", "defined in", "for example"),
        ),
        _table("Parts", "What a signal is about is written `kind/name` within its node.", _pairs(PART_KINDS)),
    ]
    return "\n".join(parts)


def _classes() -> list[tuple[str, ...]]:
    found: dict[str, set[str]] = {}
    for row in CATALOG.rows.values():
        found.setdefault(row.failure_class, set()).add(row.scope.value)
    return [(f"`{name}`", ", ".join(sorted(scopes)), meaning(name)) for name, scopes in sorted(found.items())]


def meaning(failure_class: str) -> str:
    """What a class is, or what the nearest one above it is. Raises KeyError where not even its first word is known."""
    name = failure_class.partition("|")[0]
    while name not in CLASSES and "." in name:
        name = name.rpartition(".")[0]
    return CLASSES[name]


def _keys() -> list[tuple[str, ...]]:
    """First word of a key -> the families that have such keys."""
    found: dict[str, tuple[dict[str, None], list[str]]] = {}
    for family, rows in FAMILIES.items():
        for key in rows:
            families, keys = found.setdefault(key.partition(".")[0], ({}, []))
            families[family] = None
            keys.append(key)
    return [
        (f"`{word}`", ", ".join(f"`{family}.py`" for family in families), f"`{next(k for k in keys if '.' in k)}`")
        for word, (families, keys) in sorted(found.items())
    ]


def _pairs(said: Mapping[Any, str]) -> list[tuple[str, ...]]:
    return [(f"`{getattr(name, 'value', name)}`", words) for name, words in said.items()]


def _table(
    title: str, intro: str, rows: Iterable[tuple[str, ...]], head: tuple[str, ...] = ("value", "meaning")
) -> str:
    lines = [f"## {title}", "", *wrap(intro, LINE), "", _line(head), _line(["---"] * len(head)).replace(" ", "")]
    return "\n".join([*lines, *map(_line, rows), ""])


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


# ---- liveness

LIVENESS = """# Liveness

Generated from `src/keepstep/core/liveness.py` by `docs/make_signals.py`; do not edit it, run `make docs`.

What silence means. It is *unknown*, never *dead*: a node is given up only where a second witness says so, or where its own
job stands still, and even then nothing starts before its ranks are proven dead ([fencing](../explanation/fencing.md)).
`keepstep nodes` prints the meaning of every node. The first row that fits counts; an empty cell may say anything.

| witness | words |
|---|---|
| launcher, agent | `heard`, `silent`, `none` (there is none) |
| BMC | power `on` or `off`; `dark` where the controller does not answer; `none` where nobody looks |
| peers | the steps of the node's job `step` on or `stand`; `none` without a job |
| scheduler | `up`, `down`, `none` |
| around | the other nodes of its rack or switch are `well` or `silent` |
"""

WITNESSES = ("launcher", "agent", "bmc", "peers", "scheduler", "around")


def silence() -> str:
    """The page of liveness."""
    head = ("", *WITNESSES, "means", "ranks", "about the node")
    rows = []
    for number, row in enumerate(liveness.TABLE, 1):
        said = [", ".join(f"`{word}`" for word in row.when.get(witness, ())) for witness in WITNESSES]
        lost = "replaced" if row.meaning.lost else "left"
        means = f"`{row.meaning.name}`: {row.meaning.text}"
        rows.append((str(number), *said, means, lost, row.meaning.node.replace("_", " ")))
    intro = "A test for each row stands in `tests/core/test_liveness.py`."
    return "\n".join((LIVENESS, _table("The table", intro, rows, head)))


def main(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` return 1 if they are not what would be written."""
    pages = {PAGES / "signals-and-classes.md": signals(), PAGES / "liveness.md": silence()}
    if arguments == ["--check"]:
        stale = [path.name for path, text in pages.items() if not path.exists() or path.read_text() != text]
        if stale:
            print(f"{', '.join(stale)}: not what the code says; run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    if arguments:
        print("usage: make_signals.py [--check]", file=sys.stderr)
        return 2
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
