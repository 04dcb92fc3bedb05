"""Foreign checkpoints in the commit log: registered once, never mixed up with commits, and kept whatever goes."""

import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from keepstep.checkpoint import LocalCheckpoints, Repository, StateInvalid, Superseded, flatten
from keepstep.checkpoint.adopt.adopted import Adopted, AdoptedFile, TensorSummary
from keepstep.checkpoint.repository.adopted import Registered, register, registered
from keepstep.checkpoint.repository.retention import Policy, retain
from keepstep.checkpoint.stores.posix import PosixStore


def adopted(step: int | None = 9, **changes: Any) -> Adopted:
    fields: dict[str, Any] = {
        "format": "dcp", "path": f"/runs/step-{step}", "step": step, "world_size": 2,
        "files": (
            AdoptedFile(path=".metadata", size_bytes=10, blake3="ab" * 32),
            AdoptedFile(path="a", size_bytes=5, blake3="c" * 64),
        ),
        "tensors": TensorSummary(count=1, size_bytes=5, dtypes={"bfloat16": 1}), "warnings": ("old",),
    }  # fmt: skip
    return Adopted(**fields | changes)


def repository(directory: Path, job: str = "job") -> Repository:
    return Repository(PosixStore(directory), job)


def test_what_was_registered_is_read_back_as_it_was(tmp_path: Path) -> None:
    known = register(repository(tmp_path), adopted(), "the old run")
    assert known.fresh
    assert registered(repository(tmp_path)) == [msgspec.structs.replace(known, fresh=False)]
    assert (known.adopted, known.reason, known.job) == (adopted(), "the old run", "job")


def test_the_newest_comes_first_and_other_jobs_are_left_out(tmp_path: Path) -> None:
    for step in (9, 10):
        register(repository(tmp_path), adopted(step))
    register(repository(tmp_path, "other"), adopted(11))
    assert [known.adopted.step for known in registered(repository(tmp_path))] == [10, 9]


def test_the_same_is_registered_once_whoever_does_it(tmp_path: Path) -> None:
    found: list[Registered] = []
    threads = [
        threading.Thread(target=lambda: found.append(register(repository(tmp_path), adopted()))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({known.key for known in found}) == 1
    assert sum(known.fresh for known in found) == 1
    assert register(repository(tmp_path), adopted(files=())).key != found[0].key


def test_one_with_problems_is_refused_with_all_of_them(tmp_path: Path) -> None:
    with pytest.raises(StateInvalid, match="cut short; empty"):
        register(repository(tmp_path), adopted(problems=("cut short", "empty")))
    assert registered(repository(tmp_path)) == []


def test_it_is_no_commit_and_retention_does_not_touch_it(tmp_path: Path) -> None:
    checkpoints = LocalCheckpoints(tmp_path, job="job", keep=10)
    register(checkpoints.repository, adopted())
    assert checkpoints.newest_valid() is None
    for step in range(1, 5):
        checkpoints.save(step, {"m": flatten({"w": np.arange(step)})})
    assert retain(checkpoints.repository, Policy(keep=1, min_valid=1)).expired
    assert [known.adopted.step for known in registered(repository(tmp_path))] == [9]


def test_it_is_written_under_the_newest_generation(tmp_path: Path) -> None:
    fenced = repository(tmp_path)
    fenced.log.open_generation("job", 4, "nothing")
    assert register(repository(tmp_path), adopted()).fresh
    with pytest.raises(Superseded):
        fenced.log.open_generation("job", 3, "nothing")
