"""A slice of the long soak of the benchmark: memory, descriptors, threads and files stay as they are while saves go on."""

from pathlib import Path

from bench.checkpoint import soak


def test_forty_saves_leave_nothing_behind(tmp_path: Path) -> None:
    result = soak.run(tmp_path, 40)
    assert len(result.looks) == soak.LOOKS and result.looks[-1].saves == 40
    assert result.problems() == []


def test_a_leak_is_found() -> None:
    flat = {
        "server_bytes": 1 << 26, "worker_bytes": 1 << 27, "descriptors": 40, "threads": 20, "folders": 2, "disk_bytes": 1 << 23,
        "records": 10, "save_s": 0.01,
    }  # fmt: skip
    looks = [soak.Look(saves=10 * n, **flat) for n in range(1, 11)]
    assert soak.Soak(looks=looks).problems() == []
    leaking = [soak.Look(saves=10 * n, **{**flat, "descriptors": 40 + n}) for n in range(1, 11)]
    assert soak.Soak(looks=leaking).problems() == ["descriptors grew from 45 to 50 between 50 and 100 saves"]
