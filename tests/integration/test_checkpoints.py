"""Durable state: everything is killed and a new ``keepstep run --job SAME`` goes on; damaged, unfinished, or without room."""

import json
import os
import resource
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from keepstep.checkpoint import LocalCheckpoints
from keepstep.cli.app import app
from keepstep.core import facts as f

from .driver import Run, kill_all, kill_hard

STEPS = 60
CADENCE = ("--steps", str(STEPS), "--checkpoint-every-steps", "10", "--step-time", "0.03", "--hold", "45")


def folders(run: Run) -> dict[int, Path]:
    """Step -> folder of the save, of committed checkpoints, oldest first."""
    root = run.state.path / "checkpoints" / run.name
    found = {int(path.name[:8]): path for path in (root / "steps").iterdir()}
    # Asked of the store: a server that was killed may not have heard of the newest commit.
    known = {commit.step for commit in LocalCheckpoints(root, job=run.name).repository.commits()}
    return {step: found[step] for step in sorted(known)}


def committed(run: Run) -> set[int]:
    journal = run.open_journal()
    try:
        return {entry.record.step for entry in journal.read() if isinstance(entry.record, f.CheckpointCommitted)}
    finally:
        journal.close()


def killed(run: Run) -> dict[int, Path]:
    """A run of which everything was killed once it had two checkpoints; these."""
    run.start(*run.light(*CADENCE))
    run.eventually("two checkpoints", lambda: run.state.journal.exists() and len(committed(run)) >= 2)
    os.kill(run.front.pid, signal.SIGSTOP)  # or it would start the server again
    server = run.server_pid()
    kill_all([*run.everything(), server])
    run.front.wait()
    run.check_nothing_left()
    return folders(run)


def resumed_step(run: Run, generation: int = 2) -> int:
    """How many steps were complete in what a generation started from."""
    return min(line.step for line in run.trace() if line.generation == generation and line.step >= 0)


def test_everything_is_killed_and_the_job_goes_on_from_the_disk(run: Run) -> None:
    newest = max(killed(run))
    run.start(*run.light(*CADENCE)).finish()
    assert resumed_step(run) == newest
    assert max(line.step for line in run.trace()) == STEPS - 1


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


DAMAGE = {"flipped bit": flip, "truncated": truncate, "missing shard": Path.unlink}
SLICE = (("pack", "flipped bit"), ("pack", "missing shard"), ("manifest", "truncated"))


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        pytest.param(kind, damage, marks=() if (kind, damage) in SLICE else pytest.mark.deep)
        for kind in ("pack", "manifest")
        for damage in DAMAGE
    ],
)
def test_the_newest_checkpoint_is_damaged_and_the_one_before_is_used(run: Run, kind: str, damage: str) -> None:
    found = killed(run)
    newest, before = sorted(found, reverse=True)[:2]
    DAMAGE[damage](max(found[newest].glob(f"*.{kind}"), key=lambda path: path.stat().st_size))
    run.start(*run.light(*CADENCE)).finish()
    assert resumed_step(run) == before
    refused = [key for number in range(len(run.faults())) for a in run.incident(number).attempts for key in a.rejected]
    assert refused, "it was tried, and refused by the verification"


def test_a_save_without_room_is_an_event_and_the_next_one_works(run: Run) -> None:
    """The file size limit of the snapshot server stands for the full disk: the same error path, without privileges."""
    options = ("--checkpoint-every-steps", "10", "--pad-bytes", "200000", "--hold", "380")
    run.start(*run.light("--steps", "400", *options))
    run.eventually("a checkpoint", lambda: run.state.journal.exists() and committed(run))
    (snapshots,) = run.helpers("keepstep.checkpoint.snapshot")
    _, hard = resource.prlimit(snapshots, resource.RLIMIT_FSIZE)
    resource.prlimit(snapshots, resource.RLIMIT_FSIZE, (4096, hard))
    failed = run.eventually("a save that fails", lambda: failures(run))
    run.reached(min(max(line.step for line in run.trace()) + 10, 379), generation=1)
    resource.prlimit(snapshots, resource.RLIMIT_FSIZE, (hard, hard))
    last = max(fact.step for fact in failures(run))
    run.release()
    run.eventually("a later checkpoint", lambda: max(committed(run)) > last)
    run.finish()
    assert run.faults() == [] and {line.generation for line in run.trace()} == {1}
    assert "too large" in failed[0].reason or "space" in failed[0].reason


def failures(run: Run) -> list[f.CheckpointFailed]:
    journal = run.open_journal()
    try:
        return [entry.record for entry in journal.read() if isinstance(entry.record, f.CheckpointFailed)]
    finally:
        journal.close()


def test_the_snapshot_server_dies_and_training_goes_on(run: Run) -> None:
    """What it held in memory is lost; the next fault is answered from what it has again, or from the disk."""
    run.start(*run.light("--steps", "150", "--checkpoint-every-steps", "10", "--hold", "60"))
    run.reached(15)
    kill_hard(*run.helpers("keepstep.checkpoint.snapshot"))
    kill_hard(run.reached(59, generation=1)[1].pid)
    run.finish()
    assert [fault.state for fault in run.faults()] == ["recovered"]


def test_E9_a_restart_whose_loss_is_absurd_is_not_accepted(run: Run) -> None:
    """The state that it came from is refused, and an older one is used."""
    options = ("--checkpoint-every-steps", "10", "--bad-loss-generation", "2", "--hold", "40", "--hold", "60:2")
    run.start(*run.light("--steps", "80", *options))
    kill_hard(run.at_work(25)[1].pid)
    run.finish()
    (fault,) = run.faults()
    assert fault.state == "recovered"
    attempts = run.incident().attempts
    assert len(attempts) == 2 and run.job().generation == 3
    assert attempts[1].restore_step is not None and attempts[0].restore_step is not None
    assert attempts[1].restore_step <= attempts[0].restore_step and attempts[1].restore_key != attempts[0].restore_key


def test_ctrl_c_ends_cleanly_and_the_job_can_be_resumed(run: Run) -> None:
    script = run.light("--steps", "60", "--checkpoint-every-steps", "10", "--hold", "45")
    run.start(*script, nproc=1, nodes="2")
    run.reached(25)
    os.kill(run.front.pid, signal.SIGINT)
    run.finish(130)
    assert run.job().state == "stopped"
    assert "SIGINT" in run.output.read_text()
    reached = max(line.step for line in run.trace())
    run.start(*script, nproc=1, nodes="2").finish()
    assert 0 < resumed_step(run) <= reached + 1
    assert (run.job().state, run.faults()) == ("finished", [])


def test_a_job_that_is_over_can_be_run_on_to_more_steps(run: Run) -> None:
    run.start(*run.light("--steps", "20", "--checkpoint-every-steps", "10")).finish()
    run.start(*run.light("--steps", "30", "--checkpoint-every-steps", "10")).finish()
    assert resumed_step(run) == 20


def test_another_state_directory_finds_the_checkpoints(make_run: Callable[..., Run]) -> None:
    """A lost journal is not a lost run: the directory of the checkpoints says what exists."""
    first = make_run()
    first.start(*first.light("--steps", "20", "--checkpoint-every-steps", "10")).finish()
    where = first.state.path / "checkpoints" / first.name
    shutil.rmtree(first.work)
    first.work.mkdir()
    second = make_run(name=first.name)
    second.start(*second.light("--steps", "30"), options=("--checkpoint-dir", str(where))).finish()
    assert resumed_step(second, generation=max(line.generation for line in second.trace())) == 20


def test_what_the_commands_say_as_json(run: Run) -> None:
    run.start(*run.light("--steps", "40", "--hold", "30"), nproc=1, nodes="2")
    kill_hard(run.at_work(15)[1].pid)
    run.finish()

    def said(*words: str) -> Any:
        result = CliRunner().invoke(app, [*words, "--state-dir", str(run.state.path), "--json"])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    (line,) = said("incidents")["incidents"]
    assert (line["job"], line["cause"], line["verdict"]) == (run.name, "host_software", "recovered")
    report = said("incident", "show", line["id"])
    assert report["attempts"][0]["culprits"] == [1] and report["stages"] and report["actions"]
    (job,) = said("jobs")["jobs"]
    assert (job["state"], job["exit_code"], job["generation"]) == ("finished", 0, 2)
    assert said("report")["jobs"][0]["by_cause"] == {"host_software": 1}
    assert len(said("resources")["resources"]) == 2 + 2
