"""A whole job whose checkpoints are sealed, and one whose checkpoints go to a real object store (D9, D4 tier 3, J3)."""

import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.checkpoint.stores.servers import Server, seaweedfs

from keepstep.checkpoint.opening import opener

from .driver import Run, kill_all
from .test_checkpoints import CADENCE, committed, resumed_step

__all__ = ["seaweedfs"]


def everything_dies_after_two_checkpoints(run: Run, *options: str) -> int:
    """Returns the newest step that was committed."""
    run.start(*run.light(*CADENCE), options=options)
    run.eventually("two checkpoints", lambda: run.state.journal.exists() and len(committed(run)) >= 2)
    stop(run)
    return max(committed(run))


def stop(run: Run) -> None:
    os.kill(run.front.pid, signal.SIGSTOP)  # or it would start the server again
    kill_all([*run.everything(), run.server_pid()])
    run.front.wait()
    run.check_nothing_left()


def key_directory(path: Path) -> Path:
    path.mkdir(mode=0o700)
    key = path / "1.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    return path


def test_D9_sealed_checkpoints_resume_with_the_key_and_only_with_it(run: Run, tmp_path: Path) -> None:
    keys = key_directory(tmp_path / "keys")
    newest = everything_dies_after_two_checkpoints(run, "--checkpoint-keys", str(keys))
    place = str(run.state.path / "checkpoints" / run.name)
    repository = opener(place, run.name, keys_directory=str(keys))()
    assert all(entry.session for entry in repository.manifest(repository.commits()[0].key).packs)
    other = key_directory(tmp_path / "other")
    run.start(*run.light(*CADENCE), options=("--checkpoint-keys", str(other)))
    asked = run.eventually(
        "a person is asked", lambda: "none of it is valid and complete now" in run.said() and run.said()
    )
    assert "(0 refused" in asked, "a key that is missing here says nothing about the checkpoint"
    assert "another key" in asked or "wrong key" in asked.lower(), asked
    stop(run)
    run.start(*run.light(*CADENCE), options=("--checkpoint-keys", str(keys))).finish()
    assert max(line.step for line in run.trace()) == 59
    assert newest >= 20


def test_D4_checkpoints_in_an_object_store_outlive_the_machine(
    make_run: Callable[..., Run], seaweedfs: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new state directory knows nothing of the first run: what it goes on from is in the store alone."""
    for name, value in seaweedfs.environment.items():
        monkeypatch.setenv(name, value)
    place = ("--checkpoint-dir", seaweedfs.address(f"run-{secrets.token_hex(4)}"))
    first = make_run()
    newest = everything_dies_after_two_checkpoints(first, *place)
    second = make_run(name=first.name)
    second.release()
    second.start(*second.light(*CADENCE), options=place).finish()
    assert resumed_step(second, generation=1) >= newest
    assert max(line.step for line in second.trace()) == 59
