"""What healthy machines print: none of it is a fault. From the collection beside the repository; skipped where it is absent."""

import random
import re
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Verdict
from keepstep.evidence.document import Document
from keepstep.evidence.kernel.reader import read

DATA = Path(__file__).parents[3].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the collection of real cases is not here")

PLACES = {
    "ADDR": "0000:9b:00.0", "NVMEn1": "nvme3n1", "NVME": "nvme3", "HEX": "0x1f", "MEM_ADDR": "[mem 0x1f]", "HOST_NUM": "host2",
    "CPU_NUM": "CPU 12", "NUM_KB": "4096K", "MB_S": "9000 MB/s", "UUID": "5d1c", "TIME": "10:00:00", "DATE": "2024-01-11",
    "scsiID": "scsi 0:0:1:0: ", "sdID": "sd 2:0:0:0: ", "sesID": "ses 0:0:1:0: ", "DEVICE": "device", "SYSTEM_TAG": "XE9680",
}  # fmt: skip
"""The file's own placeholders, longest first where one contains another."""

WATCHED = {"nic.low_power", "driver.peermem.context", "host.segfault", "host.cpu.hot"}
"""Seen on healthy fleets and yet worth counting: they watch, and touch neither resource nor job at once."""


def sample(regex: str, rng: random.Random) -> str:
    """A string that a simple pattern would match: the constructs of the file, no more."""
    text = re.sub(r"\(\?:", "(", regex)
    while found := re.search(r"\(([^()\\]*(?:\\.[^()\\]*)*)\)([?*+]?)", text):
        chosen = rng.choice(found[1].split("|"))
        text = text[: found.start()] + ("" if found[2] == "?" and rng.random() < 0.5 else chosen) + text[found.end() :]
    text = re.sub(r"\\d[+*]?", lambda _: str(rng.randrange(0, 100)), text)
    text = re.sub(r"\[([^\]]+)\][+*]?", lambda m: rng.choice("0123456789" if "0-9" in m[1] else "01"), text)
    text = re.sub(r"\\w[+*]?", "0003", text).replace(".*", "something").replace("\\s*", " ")
    return re.sub(r"\\(.)", r"\1", text)


def instances(line: str, rng: random.Random) -> list[str]:
    for place in sorted(PLACES, key=len, reverse=True):
        line = line.replace(place, PLACES[place])
    found = [line]
    if re.search(r"\\[dw.\[(+-]|\.\*|\[0-9", line):
        found += [sample(line, rng) for _ in range(3)]
    return found


def read_text(text: str) -> list:
    return read(Document("log", text.encode())).observations


@needs_data
def test_what_a_fleet_of_511_healthy_nodes_printed_is_no_fault() -> None:
    rng = random.Random(7)
    lines = (DATA / "kernel_log" / "imbue_benign_dmesg_patterns.txt").read_text().splitlines()
    assert len(lines) == 610
    wrong = []
    for line in lines:
        for text in instances(line, rng):
            for prefix in ("", "[   12.345678] ", "Aug  1 10:00:00 node-1 kernel: "):
                for seen in read_text(prefix + text):
                    verdict = CATALOG.row(seen.signal).verdict
                    if verdict is not Verdict.BENIGN and seen.signal not in WATCHED:
                        wrong.append((seen.signal, text))
    assert not wrong


@needs_data
@pytest.mark.parametrize("name", ["kernel_log/azure_0flap_syslog", "kernel_log/gpud_kmsg.1.log", "loghub/Linux_2k.log"])
def test_an_ordinary_log_says_nothing_worse_than_benign(name: str) -> None:
    found = read(Document(name, (DATA / name).read_bytes()))
    assert found.records
    assert [x.signal for x in found.observations if CATALOG.row(x.signal).verdict is not Verdict.BENIGN] == []


@needs_data
def test_lines_that_a_ras_stream_does_not_flag_are_no_fault() -> None:
    path = DATA / "loghub" / "BGL_first1750.log"
    flagged = {number for number, line in enumerate(path.read_text().splitlines(), 1) if not line.startswith("- ")}
    found = read(Document("bgl", path.read_bytes())).observations
    bad = [x.line for x in found if CATALOG.row(x.signal).verdict in (Verdict.FAULTY, Verdict.SUSPECT)]
    assert set(bad) <= flagged
    assert len(bad) >= 15
