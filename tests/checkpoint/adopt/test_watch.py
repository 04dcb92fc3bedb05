"""New checkpoints are found once, when they are whole and have settled; nothing is touched."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch

from keepstep.checkpoint.adopt.watch import Watcher

Sample = Callable[[str], Path]


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def names(watcher: Watcher) -> list[str]:
    return [Path(found.foreign.path).name for found in watcher.poll()]


def test_a_checkpoint_is_found_once_when_it_has_settled(sample: Sample, tmp_path: Path) -> None:
    clock, root = Clock(), tmp_path / "run"
    root.mkdir()
    watcher = Watcher(root, settle_s=10, clock=clock)
    assert names(watcher) == []
    shutil.copytree(sample("dcp_plain"), root / "step-7")
    assert names(watcher) == []
    clock.now_s = 9
    assert names(watcher) == []
    clock.now_s = 10
    found = watcher.poll()
    assert [(one.foreign.format, one.foreign.step) for one in found] == [("dcp", 7)]
    assert found[0].size_bytes == sum(file.stat().st_size for file in (root / "step-7").iterdir())
    clock.now_s = 100
    assert names(watcher) == []


def test_one_that_is_still_written_waits(sample: Sample, tmp_path: Path) -> None:
    clock, root = Clock(), tmp_path / "run"
    shutil.copytree(sample("dcp_plain"), root / "step-7")
    watcher = Watcher(root, settle_s=10, clock=clock)
    for second in (0, 8, 16):
        clock.now_s = second
        with open(root / "step-7" / "log", "a") as file:
            file.write("x")
        assert names(watcher) == []
    clock.now_s = 26
    assert names(watcher) == ["step-7"]


def test_one_without_its_marker_is_never_found_until_it_has_it(sample: Sample, tmp_path: Path) -> None:
    clock, root = Clock(), tmp_path / "run"
    shutil.copytree(sample("dcp_plain"), root / "step-7")
    metadata = (root / "step-7" / ".metadata").read_bytes()
    (root / "step-7" / ".metadata").unlink()
    watcher = Watcher(root, settle_s=1, clock=clock)
    for second in range(5):
        clock.now_s = second
        assert names(watcher) == []
    (root / "step-7" / ".metadata").write_bytes(metadata)
    assert names(watcher) == []
    clock.now_s = 10
    assert names(watcher) == ["step-7"]


def test_only_exact_names_count_and_order_is_by_step(sample: Sample, tmp_path: Path) -> None:
    root = tmp_path / "run"
    for name in ("step-10", "step-9", "step-100.backup", "best", "tmp-step-11", "step-8-old"):
        shutil.copytree(sample("dcp_plain") if name == "step-10" else root / "step-10", root / name)
    (root / "step-12").symlink_to("step-10")
    assert names(Watcher(root, settle_s=0)) == ["step-9", "step-10"]
    assert names(Watcher(root, settle_s=0, names="best")) == ["best"]


def test_one_that_is_written_again_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "model-5.pt"
    watcher = Watcher(tmp_path, settle_s=0)
    torch.save({"w": torch.ones(2)}, path)
    assert names(watcher) == ["model-5.pt"]
    assert names(watcher) == []
    # Longer, too: the time of a change is a coarse one.
    torch.save({"w": torch.ones(300)}, path)
    assert names(watcher) == ["model-5.pt"]
    path.unlink()
    assert names(watcher) == []
    torch.save({"w": torch.ones(3)}, path)
    assert names(watcher) == ["model-5.pt"]


def test_checkpoints_further_below_are_found(tmp_path: Path) -> None:
    for folder in ("version_0/checkpoints", "2026/run", "a/b/c/d"):
        (tmp_path / folder).mkdir(parents=True)
        torch.save({"w": torch.ones(2)}, tmp_path / folder / "step-3.pt")
    watcher = Watcher(tmp_path, settle_s=0, depth=3)
    # A folder that is named like a step is first looked at as one, and searched from the next poll on.
    found = [one.foreign.path for _ in range(2) for one in watcher.poll()]
    assert sorted(os.path.relpath(path, tmp_path) for path in found) == [
        "2026/run/step-3.pt", "version_0/checkpoints/step-3.pt",
    ]  # fmt: skip


def test_a_poll_does_a_bounded_amount_of_work_and_goes_on(tmp_path: Path) -> None:
    for step in range(40):
        torch.save({"w": torch.ones(1)}, tmp_path / f"step-{step}.pt")
    watcher = Watcher(tmp_path, settle_s=0, entries_per_poll=10)
    polls = [names(watcher) for _ in range(20)]
    assert max(map(len, polls)) <= 10
    assert sorted(name for poll in polls for name in poll) == sorted(f"step-{step}.pt" for step in range(40))


def test_nothing_is_touched(sample: Sample, tmp_path: Path) -> None:
    root = tmp_path / "run"
    shutil.copytree(sample("trainer"), root / "checkpoint-10")
    shutil.copytree(sample("dcp_plain"), root / "tmp-checkpoint-11")
    before = {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))}
    watcher = Watcher(root, settle_s=0)
    assert names(watcher) == ["checkpoint-10"]
    watcher.poll()
    assert {path: path.stat().st_mtime_ns for path in sorted(root.rglob("*"))} == before


def test_a_root_that_is_not_there_yet_is_no_error(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path / "later", settle_s=0)
    assert names(watcher) == []
    (tmp_path / "later").mkdir()
    torch.save({"w": torch.ones(2)}, tmp_path / "later" / "step-1.pt")
    assert names(watcher) == ["step-1.pt"]
