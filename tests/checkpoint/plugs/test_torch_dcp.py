"""torch's distributed checkpoint over a repository: exact round trips, saves that die, and nothing pickled on disk."""

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.warm import Warm
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import WriteItemType

from keepstep.checkpoint import Repository, SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.plugs.torch_dcp import KeepstepReader, KeepstepWriter, load, save
from keepstep.checkpoint.stores.posix import PosixStore

PROGRAMS = Path(__file__).parents[1] / "programs"
pytestmark = pytest.mark.filterwarnings(
    "ignore:torch.distributed is:UserWarning", "ignore:.*synchronize_staging.*:FutureWarning"
)


def repository(directory: Path) -> Repository:
    return Repository(PosixStore(directory), "job")


def state(value: float = 1.0) -> dict[str, Any]:
    return {
        "model": {"w": torch.full((3, 4), value, dtype=torch.bfloat16), "scale": torch.tensor(float(value))},
        "empty": torch.zeros(0, 3),
        "strided": torch.arange(12.0).reshape(3, 4).T,
        "step": int(value),
        "lr": [0.1 * value, {"name": "cosine", "bytes": b"\0\1", "none": None, "inf": float("inf")}],
    }


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(equal, left, right))
    return type(left) is type(right) and bool(left == right)


def test_a_nested_state_comes_back_exactly(tmp_path: Path) -> None:
    save(state(3.0), KeepstepWriter(repository(tmp_path)), 100)
    found = state(0.0)
    load(found, KeepstepReader(repository(tmp_path)))
    assert equal(found, state(3.0))
    [commit] = repository(tmp_path).commits()
    assert (commit.step, commit.state) == (100, "verified")


def test_torchs_own_calls_work_and_the_step_is_in_the_id(tmp_path: Path) -> None:
    writer = KeepstepWriter(repository(tmp_path))
    for value, checkpoint_id in ((1, "1"), (20, "run-7/step-20"), (3, Path("checkpoints/3"))):
        dcp.save(state(value), storage_writer=writer, checkpoint_id=checkpoint_id)
        assert writer.committed is not None and writer.committed.step == value
    for checkpoint_id, value in (("20", 20), ("step-1", 1), (writer.committed.key, 3)):
        found = state(0.0)
        dcp.load(found, storage_reader=KeepstepReader(repository(tmp_path)), checkpoint_id=checkpoint_id)
        assert equal(found, state(value))
    assert KeepstepWriter.validate_checkpoint_id("step-20") and not KeepstepWriter.validate_checkpoint_id("last")
    assert KeepstepReader.validate_checkpoint_id("00000000000000000003")


def test_torch_puts_a_state_together_from_our_metadata_alone(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    save(state(3.0), KeepstepWriter(repository(tmp_path)), 1)
    found = _load_state_dict_from_keys(storage_reader=KeepstepReader(repository(tmp_path)))
    assert equal(found, state(3.0))


def test_no_pickle_reaches_the_disk(tmp_path: Path) -> None:
    save(state(), KeepstepWriter(repository(tmp_path)), 1)
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        data = path.read_bytes()
        assert b"PK\x03\x04" not in data and b"data.pkl" not in data and b"collections" not in data, path


def test_what_would_have_to_be_pickled_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SaveFailed, match=r"rank 0: objects\.odd: an object of type builtins\.object"):
        save({"odd": object(), "w": torch.ones(2)}, KeepstepWriter(repository(tmp_path)), 1)
    assert repository(tmp_path).commits() == []


def test_a_second_save_of_a_step_is_another_attempt(tmp_path: Path) -> None:
    writer = KeepstepWriter(repository(tmp_path))
    for value in (1.0, 2.0):
        save(state(value), writer, 7)
    assert len(repository(tmp_path).commits()) == 2
    found = state(0.0)
    load(found, KeepstepReader(repository(tmp_path)), 7)
    assert equal(found, state(2.0))
    load(found, KeepstepReader(repository(tmp_path)), "0" * 19 + "1")
    assert equal(found, state(1.0))


def test_a_save_that_fails_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(state(1.0), KeepstepWriter(repository(tmp_path)), 1)

    def full(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(PosixStore, "writer", full)
        with pytest.raises(SaveFailed, match=r"rank 0.*No space left"):
            save(state(2.0), KeepstepWriter(repository(tmp_path)), 2)
    found = state(0.0)
    load(found, KeepstepReader(repository(tmp_path)))
    assert equal(found, state(1.0))


def test_a_newer_generation_stops_an_older_writer(tmp_path: Path) -> None:
    repository(tmp_path).log.open_generation("job", 4, "nothing")
    with pytest.raises(Superseded):
        save(state(), KeepstepWriter(repository(tmp_path), generation=3), 1)
    save(state(), KeepstepWriter(repository(tmp_path), generation=4), 1)


def test_a_flipped_bit_is_refused_and_the_state_stays_as_it_was(tmp_path: Path) -> None:
    """Reported of torch: one flipped bit loads without a word."""
    live = {f"w{n}": torch.full((300_000,), float(n)) for n in range(3)} | {"step": 5}
    save(live, KeepstepWriter(repository(tmp_path), verify=False), 5)
    pack = max(tmp_path.rglob("*.pack"), key=os.path.getsize)
    with open(pack, "r+b") as file:
        file.seek(pack.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    found = {f"w{n}": torch.full((300_000,), -1.0) for n in range(3)} | {"step": 0}
    with pytest.raises(StateInvalid, match=r"nothing was loaded: rank 0: .*digest"):
        load(found, KeepstepReader(repository(tmp_path)))
    assert found["step"] == 0 and all(found[f"w{n}"].eq(-1).all() for n in range(3))


def test_writing_wrongly_is_noticed_before_the_save_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(self: Any, key: str, progress: Any = None) -> Any:
        raise StateInvalid("a chunk does not match its digest")

    with monkeypatch.context() as patch:
        patch.setattr(Repository, "verify", wrong)
        with pytest.raises(SaveFailed, match="written wrongly"):
            save(state(), KeepstepWriter(repository(tmp_path)), 1)
    assert repository(tmp_path).commits()[0].state == "corrupt"
    with pytest.raises(StateInvalid, match=r"no checkpoint to load.*1 \(corrupt\)"):
        load(state(), KeepstepReader(repository(tmp_path)))


def test_what_is_asked_for_and_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StateInvalid, match="there is: none"):
        load(state(), KeepstepReader(repository(tmp_path)))
    save(state(), KeepstepWriter(repository(tmp_path)), 1)
    with pytest.raises(StateInvalid, match=r"no step 2.*1 \(verified\)"):
        load(state(), KeepstepReader(repository(tmp_path)), 2)
    with pytest.raises(StateInvalid, match="step number"):
        load(state(), KeepstepReader(repository(tmp_path)), "last")
    with pytest.raises(CheckpointException, match="checkpoint_id=100"):
        dcp.save(state(), storage_writer=KeepstepWriter(repository(tmp_path)))
    with pytest.raises(SaveFailed, match="enable_plan_caching"):
        for _ in range(2):
            planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
            save(state(), KeepstepWriter(repository(tmp_path)), 3, planner=planner)


class Halving(dcp.DefaultSavePlanner):
    """Gives ``w`` in two parts, as a rank with two devices would."""

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        [item] = plan.items
        size = item.tensor_data.size
        halves = [
            dataclasses.replace(
                item,
                index=MetadataIndex("w", torch.Size((begin, 0))),
                type=WriteItemType.SHARD,
                tensor_data=dataclasses.replace(
                    item.tensor_data,
                    chunk=ChunkStorageMetadata(torch.Size((begin, 0)), torch.Size((size[0] // 2, size[1]))),
                ),
            )
            for begin in (0, size[0] // 2)
        ]
        self.plan = dataclasses.replace(plan, items=halves)
        return self.plan

    def resolve_data(self, write_item: Any) -> Any:
        begin = write_item.index.offset[0]
        return self.state_dict["w"][begin : begin + write_item.tensor_data.chunk.sizes[0]]


def test_a_rank_with_several_parts_of_a_tensor(tmp_path: Path) -> None:
    whole = torch.randn(6, 5)
    save({"w": whole}, KeepstepWriter(repository(tmp_path)), 1, planner=Halving())
    found = {"w": torch.zeros(6, 5)}
    load(found, KeepstepReader(repository(tmp_path)))
    assert found["w"].equal(whole)


def test_a_checkpoint_of_another_kind_is_no_dcp_state(tmp_path: Path) -> None:
    from keepstep.checkpoint import LocalCheckpoints, flatten

    LocalCheckpoints(tmp_path, job="job").save(1, {"model": flatten({"w": np.ones(3)})})
    with pytest.raises(StateInvalid, match="not saved through torch"):
        load(state(), KeepstepReader(repository(tmp_path)))


def test_a_staged_copy_is_not_reached_by_later_changes_and_its_memory_is_used_again(tmp_path: Path) -> None:
    writer = KeepstepWriter(repository(tmp_path))
    live = state(1.0) | {"array": np.ones(2)}
    first = writer.stage(live)
    live["model"]["w"].zero_()
    live["lr"][1]["name"] = "linear"
    live["array"][:] = 0
    assert equal(first["model"], state(1.0)["model"]) and first["lr"][1]["name"] == "cosine" and first["array"].all()
    second = writer.stage(live)  # the first is still out
    assert second["model"]["w"].data_ptr() != first["model"]["w"].data_ptr()
    dcp.save(first, storage_writer=writer, checkpoint_id="1")
    third = writer.stage(live)
    assert third["model"]["w"].data_ptr() == first["model"]["w"].data_ptr()
    writer.close()


def test_async_save_writes_what_was_there_when_it_was_called(tmp_path: Path) -> None:
    writer = KeepstepWriter(repository(tmp_path))
    live = state(1.0)
    future = dcp.async_save(live, storage_writer=writer, checkpoint_id="1")
    live["model"]["w"].zero_()
    future.result()
    found = state(0.0)
    load(found, KeepstepReader(repository(tmp_path)))
    assert equal(found, state(1.0))


def test_three_processes_and_a_save_that_dies_in_both_writers(tmp_path: Path, warm_torch: Warm) -> None:
    """Reported: a rank killed in the middle of a save over an older one leaves a mixture that torch's own writer loads."""
    programs = [[str(PROGRAMS / "dcp_job.py"), str(tmp_path), str(rank)] for rank in range(3)]
    with warm_torch.started(programs, tmp_path, [os.environ] * 3) as (pids, output):
        ends = [warm_torch.wait(pid) for pid in pids]
        assert ends == [0, -signal.SIGKILL, -signal.SIGKILL], output.with_suffix(".err").read_text()
        verdict = json.loads(output.read_text().splitlines()[-1])
    assert verdict["loaded"] and verdict["behind_2"] and verdict["behind_3"]
    assert verdict["torch"] != "saved" and verdict["keepstep"] != "saved"

    # FSDP's parts from three processes, in one.
    expected = torch.load(tmp_path / "expected.pt")
    found = {
        "model": {name.removeprefix("model."): torch.zeros_like(w) for name, w in expected.items() if name[0] == "m"},
    }
    load(found, KeepstepReader(repository(tmp_path / "job")), 1)
    assert all(found["model"][name].equal(expected[f"model.{name}"]) for name in found["model"])

    # Side by side: step 1 was all ones, and a save of twos over it died.
    mixed, whole = {"w": torch.zeros(8), "step": 0}, {"w": torch.zeros(8), "step": 0}
    dcp.load(mixed, storage_reader=dcp.FileSystemReader(tmp_path / "torch"))
    assert mixed["w"].unique().tolist() == [1.0, 2.0]  # torch's writer: neither of the two saves
    load(whole, KeepstepReader(repository(tmp_path / "keepstep")))
    assert whole["w"].eq(1).all() and whole["step"] == 1
    assert len(repository(tmp_path / "keepstep").commits()) == 1
