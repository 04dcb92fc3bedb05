"""Every signal that a reader or a source can say has a row, and every row can be said by somebody.

Keys are found in the source text: whole ones as literals, those that are put together as patterns.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG, UNKNOWN
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import FLAGS, NUMBERS, TEXTS
from keepstep.evidence.recognise import read

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "keepstep"
DATA = ROOT.parent / "shared" / "data"
SAY = ("evidence", "adapters", "agent", "server")
DERIVE = ("core",)
HOLE = "\0"

WORDS = {key.split(".")[0] for key in CATALOG.rows}
KEY = re.compile(rf"(?:{'|'.join(sorted(WORDS))})(?:\.[A-Za-z0-9_-]+)+")
CLASSES = {row.failure_class for row in CATALOG.rows.values()}
BEGINNINGS = {".".join(key.split(".")[:end]) for key in CATALOG.rows for end in range(1, key.count(".") + 1)}
OTHER_WORDS = {
    "bmc.toml", "mount.nfs4", "bmc.leak.sensor",
    "agent.cpu_share", "agent.facts_dropped", "agent.pss_bytes",
    "fabric.summary", "pci.bus_id", "power.draw", "pcie.link.gen.current", "pcie.link.gen.gpucurrent", "pcie.link.gen.max",
    "pcie.link.width.current", "pcie.link.width.max",
    "gpu.ecc.corrected", "gpu.ecc.volatile", "gpu.remap.uncorrectable", "gpu.nvlink.crc", "gpu.temperature",
    "gpu.power.brake", "thermal.facility", "power.facility",
}  # fmt: skip
"""Of the shape of a key, and none: names of files, programs, counters, a tool's fields, sorts, and classes that rules give."""

BY_CODE = ("xid", "sxid", "nvlink5")
"""Families with a row for each code that a vendor lists; the families' own rows are for codes that nobody lists."""


def said_in(folders: tuple[str, ...]) -> dict[str, str]:
    """Every string of the modules there, and where it stands first."""
    found: dict[str, str] = {}
    for folder in folders:
        for text, where in _said_in(folder).items():
            found.setdefault(text, where)
    return found


@cache
def _said_in(folder: str) -> dict[str, str]:
    """Without the catalogue itself, and OpenTelemetry's own names."""
    found: dict[str, str] = {}
    for path in sorted((SOURCE / folder).rglob("*.py")):
        if not {"catalog", "otel"} & {*path.parts}:
            for line, text in texts(ast.parse(path.read_text(encoding="utf-8"))):
                found.setdefault(text, f"{path.relative_to(SOURCE)}:{line}")
    return found


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings of the module but for its documentation; what is put in at run time is ``HOLE``."""
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    inside = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in told or id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            yield node.lineno, "".join(str(x.value) if isinstance(x, ast.Constant) else HOLE for x in node.values)


def is_key(text: str) -> bool:
    known = CLASSES | BEGINNINGS | OTHER_WORDS | {*FLAGS, *NUMBERS, *TEXTS}
    return KEY.fullmatch(text) is not None and text not in known and not text.endswith("_")


def form(text: str) -> re.Pattern[str] | None:
    """The keys that a text with holes can become; None where it does not begin with a family."""
    if HOLE not in text or text.split(".")[0] not in WORDS or "." not in text.partition(HOLE)[0]:
        return None
    return re.compile(r"[\w.-]+".join(re.escape(piece) for piece in text.split(HOLE)))


def test_every_key_that_is_written_out_has_a_row_of_its_own():
    missing = [f"{where} {text}" for text, where in said_in(SAY).items() if is_key(text) and text not in CATALOG.rows]
    assert missing == []


def test_every_key_that_is_put_together_can_become_that_of_a_row():
    missing = [
        f"{where} {text.replace(HOLE, '…')}"
        for text, where in said_in(SAY).items()
        if (pattern := form(text)) is not None
        and CATALOG.row(text.replace(HOLE, "x")) is UNKNOWN
        and not any(pattern.fullmatch(key) for key in CATALOG.rows)
    ]
    assert missing == []


def test_every_row_can_be_said_by_a_reader_a_source_or_a_rule():
    said: set[str] = set()
    forms: list[re.Pattern[str]] = []
    for text in said_in((*SAY, *DERIVE, "sim")):
        said.add(text)
        pattern = form(text)
        forms += [pattern] if pattern is not None else []
        said.add(text.partition(HOLE)[0].rstrip("."))  # the row of a family, for names that nobody lists
    never = [
        key
        for key in CATALOG.rows
        if key not in said
        and "." in key
        and key.split(".")[0] not in BY_CODE
        and key.rpartition(".")[2] not in ("gpu", "nic", "disk", "unplaced")
        and not any(pattern.fullmatch(key) for pattern in forms)
    ]
    assert never == []


@pytest.mark.skipif(not DATA.is_dir(), reason="the labelled data is not here")
def test_nothing_that_is_read_falls_back_to_unknown():
    lost: dict[str, str] = {}
    for path in sorted(DATA.rglob("*")):
        if not path.is_file() or path.stat().st_size > 300_000 or "traces" in path.parts:
            continue
        reading = read(Document(path.name, path.read_bytes()))
        for seen in reading.observations if reading is not None else []:
            if CATALOG.row(seen.signal) is UNKNOWN:
                lost[seen.signal] = path.name
    assert lost == {}
