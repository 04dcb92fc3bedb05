"""Faults of ranks: killed, raised, stopped, hung, gone early. Each is one fault of a running job, real processes all of it."""

import os
import re
import signal

import pytest

from .driver import Run, gone, kill_hard


def test_without_a_fault(run: Run) -> None:
    run.start(*run.light("--steps", "20")).finish()
    assert run.faults() == []
    assert {line.generation for line in run.trace()} == {1}


def recovered(run: Run, cause: str, *, generations: int = 2, lost_at_most: int = 2) -> None:
    (fault,) = run.faults()
    assert (fault.state, fault.cause, fault.verdict) == ("recovered", cause, "recovered"), fault
    assert fault.lost_steps is not None and fault.lost_steps <= lost_at_most
    assert run.job().generation == generations
    assert len(run.incident().attempts) == generations - 1


@pytest.mark.parametrize("rank", [0, 3])
def test_a_rank_is_killed(run: Run, rank: int) -> None:
    run.start(*run.light("--steps", "60"), nodes="2")
    kill_hard(run.reached(15)[rank].pid)
    run.finish()
    recovered(run, "host_software")
    (attempt,) = run.incident().attempts
    assert attempt.culprits == (rank,)
    assert (attempt.restore_tier, attempt.cold_nodes) == ("ram", 0)


def test_A10_an_exception_in_one_rank_ends_the_wait_of_the_others(run: Run) -> None:
    run.start(*run.light("--steps", "40", "--fault", "raise@1:15")).finish()
    recovered(run, "application")
    assert "ValueError: planted at step 15" in run.faults()[0].summary
    assert run.incident().attempts[0].culprits == (1,)
    assert "ValueError: planted at step 15" in run.output.read_text(), "the traceback is shown"


def test_A7_a_stopped_rank(run: Run) -> None:
    run.start(*run.light("--steps", "60"))
    pid = run.reached(15)[1].pid
    os.kill(pid, signal.SIGSTOP)
    run.finish()
    recovered(run, "host_software")
    (attempt,) = run.incident().attempts
    assert attempt.culprits == (1,)
    assert "job-control stop" in attempt.summary
    assert gone(pid)


def test_a_rank_hung_in_user_code_is_named_with_its_stack(run: Run) -> None:
    run.start(*run.light("--steps", "40", "--fault", "hang@1:15")).finish()
    recovered(run, "application")
    (attempt,) = run.incident().attempts
    assert attempt.culprits == (1,)
    assert "light.py" in attempt.summary and "stuck_in_user_code" in attempt.summary
    (mine,) = [e.text for e in attempt.evidence if e.source == "stack of rank 1"]
    assert "is awaited" in mine and "stuck_in_user_code" in mine and "strike" in mine
    (other,) = [e.text for e in attempt.evidence if e.source == "stack of rank 0"]
    assert "waits" in other and "all_reduce" in other


def test_a_rank_is_killed_inside_the_checkpoint(run: Run) -> None:
    run.start(*run.light("--steps", "40", "--checkpoint-every-steps", "5", "--fault", "save@1:14")).finish()
    recovered(run, "host_software")
    assert run.faults()[0].restored_step in (13, 14)


def test_B14_all_ranks_killed_at_once_are_one_incident(run: Run) -> None:
    run.start(*run.light("--steps", "40"), nproc=4)
    kill_hard(*(line.pid for line in run.reached(15)))
    run.finish()
    recovered(run, "host_software")


def test_A3_children_that_left_their_parents_are_ended_as_well(run: Run) -> None:
    run.start(*run.light("--steps", "60", "--fault", "child@1:10"))
    pid = run.reached(15)[1].pid
    child = int(run.eventually("the child", lambda: re.search(r"child (\d+)", run.output.read_text()))[1])
    assert not gone(child)
    kill_hard(pid)
    run.reached(20, generation=2)
    assert gone(child)
    run.finish()


def test_C1_survivors_that_sit_in_no_collective_are_restarted_at_once(run: Run) -> None:
    """They sleep in user code for longer than the test may take: nothing but the verdict can move them."""
    run.start(*run.light("--steps", "40", "--fault", "hang@0:15", "--fault", "kill@1:15")).finish()
    recovered(run, "host_software")


def test_a_rank_that_finishes_early_is_no_fault_and_C7_the_others_finish(run: Run) -> None:
    run.start(*run.light("--steps", "40", "--alone", "--fault", "leave@1:10", "--last-words-s", "1")).finish(
        bit_equal=False
    )
    assert run.faults() == []
    assert max(line.step for line in run.trace() if line.rank == 0) == 39


@pytest.mark.parametrize(("kind", "code"), [("raise", 1), ("exit7", 7)])
def test_a_deterministic_bug_is_not_retried_for_ever(run: Run, kind: str, code: int) -> None:
    run.start(*run.light("--steps", "40", "--fault", f"{kind}@1:15:0")).finish(code)
    assert run.job().state == "failed" and run.job().exit_code == code
    assert {line.generation for line in run.trace()} == {1, 2}, "one retry, no more"
    last = run.faults()[-1]
    assert (last.state, last.cause) == ("escalated", "application")
    assert "the same error at the same step 2 times: a bug in the program" in run.output.read_text()


def test_A11_the_end_of_a_job_ends_its_ranks(run: Run) -> None:
    """Rank 1 fails for good while rank 0 would sleep for ever."""
    run.start(*run.light("--steps", "40", "--fault", "hang@0:15:0", "--fault", "exit7@1:15:0")).finish(7)
    assert run.job().state == "failed"


def test_several_faults_one_after_another(run: Run) -> None:
    run.start(*run.light("--steps", "80"))
    for count, step in enumerate((10, 30, 50)):
        kill_hard(run.reached(step)[count % 2].pid)
        run.closed(count + 1)
    run.finish()
    assert [fault.state for fault in run.faults()] == ["recovered"] * 3
    assert run.job().generation == 4
