"""Hostile and broken evidence, the whole road: nothing raises, nothing runs, time and memory stay bounded, all is counted."""

import json
import pickle
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.work import lines_run

from keepstep.core.catalog import CATALOG
from keepstep.core.combine import judge
from keepstep.core.observation import Observation
from keepstep.core.root_cause import root_causes
from keepstep.core.signal import Context
from keepstep.evidence.diagnosis import Diagnosed, diagnose
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import READERS, read

SEEDS = [
    b"[ 100.1] NVRM: Xid (PCI:0000:1b:00): 48, pid=1, name=python, DBE (double bit error) ECC Error\n",
    b"<3>1 2024-08-11T09:13:44.1+00:00 n1 kernel - - - NVRM: Xid (PCI:0000:ca:00): 94, pid=1, name=p, Contained: SM (0x1).\n",
    b"6,1234,5678,-;nvme nvme3: I/O 544 QID 12 timeout, aborting\n SUBSYSTEM=pci\n",
    b'{"@odata.id": "/redfish/v1/Systems/1", "@odata.type": "#ComputerSystem.v1.C", "Status": {"Health": "Critical"}}',
    b"   2 | 03/12/2024 | 03:44:19 | Memory #0x53 | Uncorrectable ECC | Asserted\n",
    b"======NVSMI LOG======\nAttached GPUs : 1\nGPU 00000000:1B:00.0\n    Remapped Rows\n        Pending : Yes\n",
    b"<?xml version='1.0' ?><nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id='00000000:1B:00.0'></gpu></nvidia_smi_log>",
    b'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="1",UUID="GPU-bbbbbbbb",Hostname="n"} 2\nDCGM_FI_DEV_GPU_TEMP{gpu="1"} 40\n',
    b"CA 'mlx5_0'\n\tNumber of ports: 1\n\tPort 1:\n\t\tState: Down\n\t\tPhysical state: Polling\n\t\tRate: 10\n",
    b"# Port counters: Lid 12 port 1\nLinkDownedCounter:...............25\nPortRcvErrors:...................9\n",
    b'{"smartctl": {"version": [7, 3]}, "device": {"name": "/dev/nvme2"}, "smart_status": {"passed": false}}',
    b"NodeName=gpu07 State=DOWN*+DRAIN CPUTot=4 Reason=Not responding [slurm@2025-02-03T11:12:13]\n",
    b"JobID|JobName|State|ExitCode\n1001|train|NODE_FAIL|0:0\n",
    b"[rank3]: Traceback (most recent call last):\n[rank3]:   File \"a.py\", line 1\n[rank3]: RuntimeError: CUDA error: x\n",
    b"Process 100: python train.py\nThread 100 (idle): \"MainThread\"\n    all_reduce (torch/distributed.py:2050)\n",
    b'{"message": {"message": "SignalException: Process 1 got signal: 15", "extraInfo": {"py_callstack": "x"}}}',
    b"   8388608   2097152   float   sum   -1   120.1   69.85  122.23   0   119.8   70.02  122.54   0\n"
    b"# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 173.5\n",
    b"Personalities : [raid1]\nmd0 : active raid1 sda1[0] sdb1[1](F)\n      100 blocks [2/1] [U_]\n",
    pickle.dumps({"version": "2.5", "entries": [{"collective_seq_id": 1, "profiling_name": "nccl:all_reduce"}]}),
]  # fmt: skip
MEGABYTE = 1_000_000


def diagnosed(*contents: bytes) -> Diagnosed:
    readings, unread = [], []
    for at, content in enumerate(contents):
        reading = read(Document(f"e{at}", content))
        if reading is None:
            unread.append(f"e{at}")
        else:
            readings.append(reading)
    return diagnose(readings, unread)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A sample with pieces cut out, doubled, exchanged and overwritten."""
    content = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 4))):
        at, size = draw(st.integers(0, len(content))), draw(st.integers(0, 12))
        piece = draw(st.one_of(st.binary(max_size=12), st.sampled_from(SEEDS).map(lambda seed: seed[:60])))
        content[at : at + size] = piece
    return bytes(content)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(mutated(), st.binary(max_size=200)), min_size=1, max_size=3))
def test_no_mutation_of_any_form_raises(contents: list[bytes]) -> None:
    found = diagnosed(*contents)
    assert len(found.readings) + len(found.unread) == len(contents)


@settings(max_examples=40, deadline=None)
@given(mutated())
def test_every_reader_survives_what_is_not_its_own(content: bytes) -> None:
    for reader in READERS:
        assert 0.0 <= reader.recognise(Document("x", content)) <= 1.0
        reader.read(Document("x", content))


LONG = {
    "a line of 10 MB": b"[ 100.1] NVRM: Xid (PCI:0000:1b:00): 79, " + b"A" * 10 * MEGABYTE,
    "line ends": b"[ 100.1] NVRM: Xid (PCI:0000:1b:00): 79, x\n" + b"\n" * 50_000,
    "brackets": b"{" + b'"a":[' * 100_000,
    "nested lists": b"[" * 200_000 + b"]" * 200_000,
    "a string of 10 MB in JSON": b'{"message": "' + b"x" * 10 * MEGABYTE + b'"}',
    "one tag of 10 MB": b"<?xml version='1.0'?><nvidia_smi_log><gpu id='" + b"0" * 10 * MEGABYTE,
    "bars": b"|" * 5 * MEGABYTE,
    "blanks": b"[rank0]: " + b" " * 5 * MEGABYTE + b"Error: x",
    "colons": b"a:" * 2 * MEGABYTE,
    "invalid UTF-8": b"\xff\xfe\x80" * MEGABYTE,
    "NULs": b"\0" * 5 * MEGABYTE,
}


@pytest.mark.parametrize("name", LONG)
def test_a_huge_record_is_read_in_bounded_memory(name: str) -> None:
    content = LONG[name]
    tracemalloc.start()
    diagnosed(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 * len(content) + 40 * MEGABYTE, f"{peak / MEGABYTE:.0f} MB"


def test_entities_that_multiply_are_refused() -> None:
    lol = b"".join(b'<!ENTITY l%d "%s">' % (n, b"&l%d;" % (n - 1) * 10) for n in range(1, 12))
    content = b'<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY l0 "lol">' + lol + (
        b"]><nvidia_smi_log><gpu id='00000000:1B:00.0'><product_name>&l11;</product_name></gpu></nvidia_smi_log>"
    )  # fmt: skip
    tracemalloc.start()
    found = diagnosed(content)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20 * MEGABYTE
    assert found.incidents == []


def test_an_external_entity_is_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("NVIDIA H100 top secret")
    content = (
        f'<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY x SYSTEM "file://{secret}">]>'
        "<nvidia_smi_log><gpu id='00000000:1B:00.0'><product_name>&x;</product_name></gpu></nvidia_smi_log>"
    )
    found = diagnosed(content.encode())
    assert "top secret" not in repr(found)


class _Touch:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (open, (self.path, "w"))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_crafted_pickle_runs_nothing_and_is_told(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "ran"
    found = diagnosed(pickle.dumps({"entries": [_Touch(str(mark))], "version": "2.5"}, protocol))
    assert not mark.exists()
    assert [signal.key for signal in found.signals] == ["job.dump_refused"] or found.unread


def test_a_pickle_that_asks_for_gigabytes_gets_none() -> None:
    bombs = [
        b"\x80\x04X\xff\xff\xff\x7f",
        b"\x80\x04]" + b"e" * 1000,
        b"\x80\x04" + b"(" * 500_000,
        b"\x80\x02}q\x00" * 1000,
    ]
    tracemalloc.start()
    for bomb in bombs:
        diagnosed(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60 * MEGABYTE


def test_counters_that_go_backwards_are_no_fault() -> None:
    rows = [
        json.dumps({"time": f"2024-01-01 00:00:0{n}", "gpu_id": 0, "gpu:0": {"ecc": value}})
        for n, value in enumerate((9, 2, 0))
    ]
    ports = (
        "# Port counters: Lid 12 port 1\nLinkDownedCounter:...............200\nPortRcvErrors:...................9\n"
        "# Port counters: Lid 12 port 1\nLinkDownedCounter:...............0\nPortRcvErrors:...................0\n"
    )
    assert not any(
        "quarantine" in x.resource_action for x in diagnosed("\n".join(rows).encode(), ports.encode()).incidents
    )


def test_what_was_not_understood_is_counted() -> None:
    found = diagnosed(b"\x00\x01\x02 no form at all", b"[ 1.0] NVRM: Xid (PCI:zz): what, is this\n" * 50 + SEEDS[0])
    assert found.unread == ["e0"]
    assert found.readings[0].records >= 51


def _many(count: int) -> list[Observation]:
    keys = [key for key in sorted(CATALOG.rows) if not key.startswith("agent.")]
    return [
        Observation(
            signal=keys[n % len(keys)], node=f"n{n % 50}", part=f"gpu/{n % 8}" if n % 3 else f"rank/{n}", at_s=float(n),
            clock="c", source="kernel_log", file="f", line=n,
            attributes={"pid": str(n), "boot": "1", "rank": str(n % 900), "seq": str(n % 7)},
        )
        for n in range(count)
    ]  # fmt: skip


def _cost(observations: list[Observation]) -> int:
    return lines_run(lambda: root_causes(judge(observations, Context()), Context()))


def test_four_times_the_signals_cost_no_sixteen_times_the_work() -> None:
    assert _cost(_many(2_000)) < 7 * _cost(_many(500))


def _growth(key: str) -> float:
    """How many times more four times as many signals of one key cost."""
    some = [
        Observation(
            signal=key, node=f"n{n}", part=f"gpu/{n % 8}", at_s=n * 0.01, clock="c", source="kernel_log", file="f", line=n,
            attributes={"pid": str(n), "rank": str(n)},
        )
        for n in range(48)
    ]  # fmt: skip
    return _cost(some) / _cost(some[::4])


def _in_a_rule() -> list[str]:
    """Keys that the core names outside of its catalogue: the others are all treated alike."""
    core = Path(judge.__code__.co_filename).parents[1]
    text = "".join(path.read_text() for path in core.rglob("*.py") if "catalog" not in path.parts)
    return [key for key in sorted(CATALOG.rows) if f'"{key}"' in text]


def test_many_of_one_key_cost_no_more_than_their_number() -> None:
    keys = _in_a_rule()
    assert len(keys) > 100
    assert {key: growth for key in keys[::3] if (growth := _growth(key)) > 6} == {}


@pytest.mark.deep
@pytest.mark.slow
def test_many_of_any_key_cost_no_more_than_their_number() -> None:
    assert {key: growth for key in sorted(CATALOG.rows) if (growth := _growth(key)) > 6} == {}
