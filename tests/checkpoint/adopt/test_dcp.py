"""DCP directories: what their own reader lets through is found, as far as content can tell."""

import os
import pickle
import random
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.warm import Warm

from keepstep.checkpoint import StateInvalid
from keepstep.checkpoint.adopt.adopted import adopt
from keepstep.checkpoint.adopt.boxes import cover_fault
from keepstep.checkpoint.adopt.load import load
from keepstep.checkpoint.adopt.recognise import recognise

from .makers import PROGRAMS

Sample = Callable[[str], Path]


def test_the_hybrid_of_two_saves_is_told_as_far_as_it_can_be(tmp_path: Path, warm_torch: Warm) -> None:
    """A rank is killed while a step is saved over an older one: DCP then loads half of each without a word."""
    ranks = [[str(PROGRAMS / "dcp_two_ranks.py"), str(tmp_path), str(rank)] for rank in (0, 1)]
    with warm_torch.started(ranks, tmp_path, [os.environ] * 2) as (pids, _):
        assert [warm_torch.wait(pid) for pid in pids][1] == -signal.SIGKILL
    healthy = adopt(tmp_path / "healthy" / "step-1")
    assert healthy.problems == () and healthy.world_size == 2
    assert not any("mixed" in line for line in healthy.warnings)

    assert load(tmp_path / "healthy" / "step-1").groups["w"].tolist() == [1.0] * 8

    target = tmp_path / "step-1"
    state = {"w": torch.zeros(8)}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load(state, checkpoint_id=target, no_dist=True)
    assert state["w"].tolist() == [2.0] * 4 + [1.0] * 4  # silently

    hybrid = adopt(target)
    assert hybrid.problems == ()  # every length, shape and checksum is right: content cannot tell
    told = [line for line in hybrid.warnings if "mixed" in line]
    assert len(told) == 1 and "__0_0.distcp" in told[0] and "carry nothing that could tell" in told[0]


def test_a_mixed_save_of_another_size_is_a_problem(sample: Sample, tmp_path: Path) -> None:
    path = sample("dcp_plain")
    other = tmp_path / "other"
    with pytest.warns(UserWarning, match="single process"):
        dcp.save({"model": {"weight": torch.ones(40, 6)}}, checkpoint_id=other, no_dist=True)
    shutil.copy(other / "__0_0.distcp", path / "__0_0.distcp")
    with_problems = adopt(path).problems
    assert with_problems


@pytest.mark.parametrize("change", ["shape", "dtype"])
def test_a_slice_of_another_save_is_found_by_its_own_shape(tmp_path: Path, change: str) -> None:
    """The same length, so that neither index nor file system shows anything."""
    second = torch.ones(3, 2) if change == "shape" else torch.ones(2, 3, dtype=torch.int32)
    for name, tensor in (("a", torch.ones(2, 3)), ("b", second)):
        with pytest.warns(UserWarning, match="single process"):
            dcp.save({"w": tensor}, checkpoint_id=tmp_path / name, no_dist=True)
    sizes = [(tmp_path / name / "__0_0.distcp").stat().st_size for name in "ab"]
    shutil.copy(tmp_path / "b" / "__0_0.distcp", tmp_path / "a" / "__0_0.distcp")
    problems = adopt(tmp_path / "a").problems
    assert sizes[0] == sizes[1] or problems
    assert any("are mixed" in line for line in problems) or sizes[0] != sizes[1]


def test_a_left_over_file_is_a_warning(sample: Sample) -> None:
    path = sample("dcp_plain")
    shutil.copy(path / "__0_0.distcp", path / "__7_0.distcp")
    adopted = adopt(path)
    assert adopted.problems == ()
    assert any("__7_0.distcp is not named" in line for line in adopted.warnings)


def rewrite(path: Path, change: Callable[[Any], None]) -> None:
    """The metadata as torch would have written it, with something in it changed."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    change(metadata)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


def test_a_piece_that_is_nowhere_is_a_problem(sample: Sample) -> None:
    path = sample("dcp_plain")

    def lose(metadata: Any) -> None:
        lost = next(key for key in metadata.storage_data if key.fqn == "model.weight")
        metadata.storage_data.pop(lost)

    rewrite(path, lose)
    assert any("does not say where" in line for line in adopt(path).problems)


def test_uncovered_and_doubly_covered_elements_are_problems(sample: Sample) -> None:
    path = sample("dcp_plain")

    def widen(metadata: Any) -> None:
        metadata.state_dict_metadata["model.weight"].size = torch.Size([5, 6])

    rewrite(path, widen)
    assert any("model.weight: at least 6 of 30 elements are in no piece" in line for line in adopt(path).problems)

    def double(metadata: Any) -> None:
        metadata.state_dict_metadata["model.weight"].size = torch.Size([4, 6])
        metadata.state_dict_metadata["model.weight"].chunks *= 2

    rewrite(path, double)
    assert any("overlap" in line for line in adopt(path).problems)


def test_a_file_outside_of_the_directory_is_refused(sample: Sample, tmp_path: Path) -> None:
    path = sample("dcp_plain")
    shutil.copy(path / "__0_0.distcp", tmp_path / "outside")

    def escape(metadata: Any) -> None:
        for info in metadata.storage_data.values():
            info.relative_path = "../../outside"

    rewrite(path, escape)
    problems = adopt(path).problems
    assert any("outside the checkpoint" in line for line in problems)


def test_a_missing_shard_of_the_hugging_face_writer_is_found(sample: Sample) -> None:
    path = sample("dcp_shards")
    first = path / "shard-00001-model-00001-of-00001.safetensors"
    first.rename(path / "shard-00003-model-00001-of-00001.safetensors")
    problems = adopt(path).problems
    assert any("shards [1, 2] are missing" in line for line in problems)


def test_metadata_that_is_another_pickle_is_refused(sample: Sample) -> None:
    path = sample("dcp_plain")
    (path / ".metadata").write_bytes(pickle.dumps({"a": 1}))
    found = recognise(path)
    assert found is not None and not found.complete
    with pytest.raises(StateInvalid, match="not what DCP writes"):
        adopt(path)


class Run:
    def __reduce__(self) -> Any:
        return print, ("it ran",)


class Evaluate:
    def __reduce__(self) -> Any:
        return eval, ("1",)


def test_a_metadata_that_is_right_and_would_also_run_code_is_a_problem(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sample("dcp_plain")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.planner_data["x"] = [Run(), Evaluate()]
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    adopted = adopt(path)
    assert any("builtins.eval" in line for line in adopted.problems)
    assert any("builtins.print" in line for line in adopted.warnings)
    assert capsys.readouterr().out == ""


# ---- coverage


def grid(rows: int, columns: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    return [((r * 2, c * 3), (2, 3)) for r in range(rows) for c in range(columns)]


def test_a_large_grid_is_checked_at_once() -> None:
    boxes = grid(100, 200)
    random.Random(0).shuffle(boxes)
    assert cover_fault((200, 600), boxes) is None
    assert "6 of 120000 elements are in no piece" in (cover_fault((200, 600), boxes[1:]) or "")
    assert "overlap" in (cover_fault((200, 600), [*boxes[1:], boxes[5]]) or "")


@pytest.mark.parametrize(
    ("shape", "boxes", "fault"),
    [
        ((), [((), ())], None),
        ((), [], "1 of 1"),
        ((), [((), ()), ((), ())], "overlap"),
        ((0, 3), [], None),
        ((0, 3), [((0, 0), (0, 3))], None),
        ((4,), [((0,), (2,)), ((2,), (2,))], None),
        ((4,), [((0,), (3,)), ((2,), (2,))], "overlap"),
        ((4,), [((0,), (2,)), ((3,), (2,))], "beyond"),
        ((4,), [((0, 0), (2, 2))], "dimensions"),
        ((3, 3), [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1)), ((1, 1), (1, 1))], None),
        ((3, 3), [((0, 0), (1, 2)), ((0, 2), (2, 1)), ((2, 1), (1, 2)), ((1, 0), (2, 1))], "1 of 9"),
    ],
)
def test_coverage_is_exact(shape: Any, boxes: Any, fault: str | None) -> None:
    found = cover_fault(shape, boxes)
    assert found is None if fault is None else found is not None and fault in found
