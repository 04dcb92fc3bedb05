"""Parts of the launcher by themselves: bounds, orders of arrival, classes of error, the choice of what to import."""

import os
import socket
import time
from pathlib import Path

import pytest

from keepstep.core.facts import ErrorRecord
from keepstep.launcher import errors, preload, stacks, virtual_device
from keepstep.launcher.gate import check_memory, check_product
from keepstep.launcher.run_dir import RunDirectory
from keepstep.launcher.vitals import Vitals, Watched
from keepstep.wire.progress import ProgressCell

# ---- errors


def caught(error: BaseException) -> ErrorRecord:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 - whatever the case hands in
        return errors.describe(raised)


@pytest.mark.parametrize(
    ("error", "kind", "victim"),
    [
        (ValueError("loss is nan"), "ValueError", False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "CUDA error", False),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), "out of memory", False),
        (MemoryError(), "out of memory", False),
        (RuntimeError("NCCL error in: unhandled system error"), "NCCL", False),
        (RuntimeError("NCCL communicator: ncclRemoteError, remote process exited"), "NCCL", True),
        (
            RuntimeError("Rank 1 failed: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [::1]:1"),
            "RuntimeError",
            True,
        ),
        (RuntimeError("[gloo] Timed out waiting 1800000ms for recv operation to complete"), "RuntimeError", True),
        (ConnectionResetError(104, "Connection reset by peer"), "ConnectionResetError", True),
        (BrokenPipeError(32, "Broken pipe"), "BrokenPipeError", True),
        (TimeoutError("the data server did not answer: timed out"), "TimeoutError", False),
    ],
)
def test_errors_have_a_class_and_know_whether_they_are_a_victims(error: BaseException, kind: str, victim: bool) -> None:
    record = caught(error)
    assert (record.kind, record.victim) == (kind, victim)


def test_victim_is_found_behind_the_error_that_wraps_it() -> None:
    try:
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except ConnectionResetError as inner:
            raise RuntimeError("step failed") from inner
    except RuntimeError as outer:
        assert errors.describe(outer).victim


def test_signature_is_stable_over_addresses_and_numbers_and_tells_bugs_apart() -> None:
    one = caught(IndexError("index 1023 is out of bounds, tensor at 0x7f1234abcd"))
    same = caught(IndexError("index 7 is out of bounds, tensor at 0x55aa"))
    other = caught(IndexError("list index out of range"))
    assert one.signature == same.signature
    assert one.signature != other.signature


def test_error_whose_text_raises_is_reported_all_the_same() -> None:
    class Bad(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    assert "cannot be shown" in caught(Bad()).message


def test_bounded_text_keeps_both_ends_and_the_limit() -> None:
    text = "begin " + "é" * 10_000 + " end"
    cut = errors.bounded(text, 500)
    assert len(cut.encode()) <= 500
    assert cut.startswith("begin ") and cut.endswith(" end")
    assert errors.bounded("short", 500) == "short"


def test_error_file_of_torchelastics_own_decorator_is_read() -> None:
    record = caught(ValueError("bad lr"))
    found = errors.from_torchelastic_file(errors.torchelastic_file(ValueError("bad lr"), record))
    assert found is not None and (found.kind, found.message) == ("ValueError", "bad lr")
    for broken in (b"", b"[]", b"{}", b'{"message": 3', b"\xff"):
        assert errors.from_torchelastic_file(broken) is None


# ---- what is imported beforehand


def test_preload_follows_the_scripts_own_modules(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("from .deep import net\n")
    (tmp_path / "package" / "deep.py").write_text("def f():\n    import torch.nn as nn\n")
    (tmp_path / "train.py").write_text("import keepstep\nfrom package import deep\n")
    chosen = preload.choose([str(tmp_path / "train.py")])
    assert chosen.wants_torch
    assert {"torch", "torch.distributed", "torch._dynamo", "numpy", "keepstep.train"} <= set(chosen.modules)


def test_preload_of_a_plain_script_is_empty_and_extras_are_kept(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import json, os\n")
    assert preload.choose([str(tmp_path / "plain.py")]) == ((), False)
    assert preload.choose([str(tmp_path / "plain.py")], ["csv"]) == (("csv",), False)


@pytest.mark.parametrize("text", ["def broken(:\n", "\0"])
def test_preload_leaves_a_script_that_cannot_be_read_to_its_rank(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad.py").write_text(text)
    assert preload.choose([str(tmp_path / "bad.py")]) == ((), False)
    assert preload.choose([str(tmp_path / "missing.py")]) == ((), False)


# ---- vitals


def test_idle_time_counts_at_most_three_intervals_of_a_gap(tmp_path: Path) -> None:
    cell = ProgressCell(str(tmp_path / "cell"), create=True)
    now_ns = time.monotonic_ns()
    vitals, rank = Vitals(now_ns), Watched(0, os.getpid(), cell)
    vitals.beat(1, [rank], now_ns)
    later = vitals.beat(1, [rank], now_ns + 3_600_000_000_000)
    assert later.running_s == pytest.approx(0.3)
    assert later.ranks[0].idle_s == pytest.approx(0.3)
    cell.heartbeat()
    moved = vitals.beat(1, [rank], now_ns + 3_600_100_000_000)
    assert moved.ranks[0].idle_s <= 0.1
    assert moved.ranks[0].phase_s == pytest.approx(0.4)


def test_a_new_generation_begins_with_no_idle_time(tmp_path: Path) -> None:
    cell = ProgressCell(str(tmp_path / "cell"), create=True)
    vitals, rank = Vitals(0), Watched(0, os.getpid(), cell)
    assert vitals.stalled_s() == float("inf")
    for tick in range(1, 20):
        vitals.beat(1, [rank], tick * 100_000_000)
    assert vitals.stalled_s() == pytest.approx(1.8)
    assert vitals.beat(2, [rank], 2_000_000_000).ranks[0].idle_s == 0.0


def test_last_words_keep_the_progress_that_a_session_wrote(tmp_path: Path) -> None:
    launchers = ProgressCell(str(tmp_path / "cell"), create=True)
    hooks, session = ProgressCell(str(tmp_path / "cell")), ProgressCell(str(tmp_path / "cell"))
    session.enter("step")
    session.step_done(41, 5, 0.25)
    hooks.fail()
    read = launchers.read()
    assert (read.step, read.phase, read.loss, read.failed) == (41, "step", 0.25, True)


# ---- stacks, gate, faults


def test_faulthandler_text_gives_the_main_thread() -> None:
    text = (
        'Thread 0x00007f01 (most recent call first):\n  File "/x/loader.py", line 3 in pump\n\n'
        'Current thread 0x00007f02 (most recent call first):\n  File "/x/a b.py", line 10 in step\n'
        '  File "/x/train.py", line 99 in <module>\n'
    )
    assert stacks.parse_faulthandler(text) == ("/x/a b.py:10 step", "/x/train.py:99 <module>")
    assert stacks.parse_faulthandler("") == ()


def test_py_spy_text_gives_the_main_thread() -> None:
    frames = b'[{"name": "f", "filename": "t.py", "line": 5}]'
    text = b'[{"thread_name": "x", "frames": []}, {"thread_name": "MainThread", "frames": %s}]' % frames
    assert stacks.parse_py_spy(text) == ("t.py:5 f",)
    assert stacks.parse_py_spy(b"nonsense") == ()


def test_gate_checks_pass_on_a_good_machine() -> None:
    assert check_product() and check_memory()


def test_fault_file_that_is_none_says_so(tmp_path: Path) -> None:
    assert virtual_device.read_fault(str(tmp_path), "n0", 0) is None
    (tmp_path / "faults").mkdir()
    path = Path(virtual_device.fault_file(str(tmp_path), "n0", 0))
    for text in ("", "{}", '{"kind": "unheard"}', "[1]"):
        path.write_text(text)
        with pytest.raises(ValueError, match="fail_ranks"):
            virtual_device.read_fault(str(tmp_path), "n0", 0)
    path.write_text('{"kind": "broken"}')
    fault = virtual_device.read_fault(str(tmp_path), "n0", 0)
    assert fault is not None and fault.fails_ranks and fault.fails_gate


# ---- the run directory


def test_run_directories_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path: Path) -> None:
    (tmp_path / "run" / "killed").mkdir(parents=True)
    (tmp_path / "run" / "killed" / "snapshots.sock").touch()
    first = RunDirectory(str(tmp_path / "run" / "first"))
    second = RunDirectory(str(tmp_path / "run" / "second"))
    assert sorted(os.listdir(tmp_path / "run")) == ["first", "second"]
    first.remove()
    second.remove()
    assert os.listdir(tmp_path / "run") == []


def test_socket_path_fits_however_deep_the_directory_lies(tmp_path: Path) -> None:
    deep = RunDirectory(str(tmp_path / ("d" * 90) / "run" / "s"))
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(deep.socket_path("x.sock"))
        assert (Path(deep.path) / "x.sock").is_socket()
    finally:
        listener.close()
        deep.remove()
