"""Readers of network, storage, scheduler and gate evidence: whatever comes, they do not raise and stay bounded."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.evidence import gate, network, scheduler, storage
from keepstep.evidence.document import Document

READERS = (*network.READERS, *storage.READERS, *scheduler.READERS, *gate.READERS)
SEEDS = (
    "CA 'mlx5_0'", "\tPort 1:", "\t\tState: Down", "Infiniband device 'm' port 1 status:", "# Port counters: Lid 7 port 1",
    "SymbolErrorCounter:....0", "SW 1 2 0x7cfe9003009ce5b0 4x EDR - CA 1 1 0x7cfe9003009ce5b0 ( 'a' - 'b' )",
    "/sys/class/infiniband/mlx5_0/ports/1/state:1: DOWN", "==> /sys/class/infiniband/a/ports/1/state <==",
    "1: eth0: <UP,NO-CARRIER> mtu 1500 state DOWN", "NIC statistics:", "     rx_crc_errors: 12", "PSU0 status        | ERROR",
    "GUID               | 0x1", "product name       | x", "firmware version   | 1", "smartctl 7.2 x", "Critical Warning: 0xff",
    "Filesystem Size Used Avail Use% Mounted on", "/dev/sda1 1T 1T 0 100% /", "Personalities :", "md0 : active raid1 a[0](F)",
    "[2/1] [U_]", "NodeName=n1 State=DOWN* Reason=x [a@b]", "JobId=1 JobState=NODE_FAIL", "NODELIST|STATE|REASON",
    "n[1-999999]|down*|", "JobID|JobName|State", "1|a|NODE_FAIL", "# nThread 1", "Tested 2 GPUs:", "\tGPU 0: FAULTY",
    "10.0%  proc'd: 1 (2 Gflop/s) errors: x - DIED! temps: 1",
    "RDMA_Write BW Test", "nvbandwidth Version: 1", "Running host_to_device_memcpy_ce.", "   0  1", " 0  1.0 2.0",
    "gpu0_to_cpu_by_sm 1.0",
)  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    pieces=st.lists(st.one_of(st.sampled_from(SEEDS), st.text(max_size=30)), max_size=25), raw=st.binary(max_size=40)
)
def test_no_text_makes_a_reader_raise(pieces: list[str], raw: bytes) -> None:
    document = Document("x", "\n".join(pieces).encode(errors="replace") + raw)
    for reader in READERS:
        assert 0.0 <= reader.recognise(document) <= 1.0, reader.name
        reading = reader.read(document)
        assert len(reading.not_understood) <= 20, reader.name


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(["n1", "DOWN", "UP", "7", "x" * 50])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from([
                "smartctl", "device", "name", "smart_status", "passed", "exit_status", "messages", "critical_warning",
                "available_spare", "nvme_smart_health_information_log", "ata_smart_attributes", "table", "raw", "value", "id",
                "intf_status", "ifname", "flags", "link_speed", "intf_ifcfg", "eth", "pci", "ib", "netdev", "nodes", "jobs",
                "meta", "Slurm", "state", "state_flags", "reason", "job_state", "sinfo", "node", "errors", "test_categories",
                "tests", "results", "status", "gpu_ids", "nvbandwidth", "testcases", "Defective Details", "a/return_code",
                "/sys/class/infiniband/m/ports/1/state", "/sys/devices/system/edac/mc/mc0/ue_count",
            ]),
            inner, max_size=6,
        ),
    ),
    max_leaves=25,
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(value=VALUES)
def test_no_json_makes_a_reader_raise(value: object) -> None:
    document = Document("x", json.dumps(value).encode())
    for reader in READERS:
        reader.recognise(document)
        reader.read(document)


HOSTILE = {
    "one long line": b"/ports/1/state:" * 600_000,
    "blanks": b" " * 4_000_000,
    "lines of blanks": (b" " * 16_000 + b"\n") * 40,
    "dashes": (b"- " * 8000 + b"\n") * 20,
    "reasons": (b"NodeName=n State=DOWN Reason=" + b" " * 15_000 + b"\n") * 20,
    "bars": b"|" * 2_000_000,
    "deep": b"[" * 200_000,
    "open": b'{"nodes":' * 50_000,
    "numbers": b"9" * 1_000_000,
    "invalid": b"\xff\xfe\x80" * 100_000,
}


@pytest.mark.parametrize("name", sorted(HOSTILE))
def test_hostile_documents_are_read(name: str) -> None:
    document = Document("x", HOSTILE[name])
    for reader in READERS:
        reader.recognise(document)
        reading = reader.read(document)
        assert len(reading.observations) < 5000
