"""Faults of ranks: killed, raised, stopped, hung, gone early. Each is one fault of a running job, real processes all of it."""

import os
import re
import signal
from collections.abc import Callable

import pytest

from .driver import QUICK, Run, gone, kill_all, kill_hard


def recovered(run: Run, cause: str, *, generations: int = 2, lost_at_most: int = 2) -> None:
    (fault,) = run.faults()
    assert (fault.state, fault.cause, fault.verdict) == ("recovered", cause, "recovered"), fault
    assert fault.lost_steps is not None and fault.lost_steps <= lost_at_most
    assert run.job().generation == generations
    assert len(run.incident().attempts) == generations - 1


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.deep), 3])
def test_a_rank_is_killed(run: Run, rank: int) -> None:
    run.start(*run.light("--steps", "60", "--hold", "30"), nodes="2")
    kill_hard(run.at_work(15)[rank].pid)
    run.finish()
    recovered(run, "host_software")
    (attempt,) = run.incident().attempts
    assert attempt.culprits == (rank,)
    assert (attempt.restore_tier, attempt.cold_nodes) == ("ram", 0)


def test_A10_an_exception_then_a_death_inside_the_checkpoint_then_C1_survivors_in_no_collective(run: Run) -> None:
    """The exception ends the wait of the other rank. The survivor of C1 sleeps in user code for longer than the test may take:
    nothing but the verdict can move it. Each fault waits for the end of the incident before it."""
    faults = ("raise@1:10", "save@1:19:2", "hang@0:30:3", "kill@1:30:3")
    planted = [word for fault in faults for word in ("--fault", fault)]
    planted += ["--hold", "5", "--hold", "15:2", "--hold", "25:3"]
    run.start(*run.light("--steps", "45", "--checkpoint-every-steps", "5", *planted))
    run.at_work(4)
    run.release()
    for count in (1, 2):
        run.closed(count)
        run.release(generation=count + 1)
    run.finish()
    seen = run.faults()
    assert sorted((x.state, x.cause) for x in seen) == [
        ("recovered", "application"), ("recovered", "host_software"), ("recovered", "host_software"),
    ]  # fmt: skip
    assert all(x.lost_steps is not None and x.lost_steps <= 2 for x in seen)
    assert run.job().generation == 4
    reports = [run.incident(number) for number in range(3)]
    assert [len(report.attempts) for report in reports] == [1, 1, 1]
    (raised,) = [number for number in range(3) if seen[number].cause == "application"]
    assert "ValueError: planted at step 10" in seen[raised].summary
    assert reports[raised].attempts[0].culprits == (1,)
    assert "ValueError: planted at step 10" in run.output.read_text(), "the traceback is shown"
    assert any(x.restored_step in (18, 19) for x in seen), "the checkpoint of step 20 was not complete"


def test_a_rank_hung_in_user_code_is_named_with_its_stack(make_run: Callable[..., Run]) -> None:
    run = make_run(policy=QUICK)
    run.start(*run.light("--steps", "60", "--fault", "hang@1:40")).finish()
    recovered(run, "application")
    (attempt,) = run.incident().attempts
    assert attempt.culprits == (1,)
    assert "light.py" in attempt.summary and "stuck_in_user_code" in attempt.summary
    (mine,) = [e.text for e in attempt.evidence if e.source == "stack of rank 1"]
    assert "is awaited" in mine and "stuck_in_user_code" in mine and "strike" in mine
    (other,) = [e.text for e in attempt.evidence if e.source == "stack of rank 0"]
    assert "waits" in other and "all_reduce" in other


def test_B14_all_ranks_killed_at_once_are_one_incident(run: Run) -> None:
    run.start(*run.light("--steps", "40", "--hold", "30"), nproc=4)
    kill_all(line.pid for line in run.at_work(15))
    run.finish()
    recovered(run, "host_software")


def test_a_rank_that_finishes_early_is_no_fault_and_C7_the_others_finish(run: Run) -> None:
    run.start(*run.light("--steps", "40", "--alone", "--fault", "leave@1:10", "--last-words-s", "1")).finish(
        bit_equal=False
    )
    assert run.faults() == []
    assert max(line.step for line in run.trace() if line.rank == 0) == 39


BUG = "the same error at the same step 2 times: a bug in the program"


def failed_for_good(run: Run, code: int) -> None:
    assert run.job().state == "failed" and run.job().exit_code == code
    assert {line.generation for line in run.trace()} == {1, 2}, "one retry, no more"
    last = run.faults()[-1]
    assert (last.state, last.cause) == ("escalated", "application")
    assert BUG in run.output.read_text()


@pytest.mark.parametrize(("kind", "code"), [("raise", 1), pytest.param("exit7", 7, marks=pytest.mark.deep)])
def test_a_deterministic_bug_is_not_retried_for_ever(run: Run, kind: str, code: int) -> None:
    run.start(*run.light("--steps", "40", "--fault", f"{kind}@1:15:0")).finish(code)
    failed_for_good(run, code)


def test_A11_the_end_of_a_job_ends_its_ranks(run: Run) -> None:
    """Rank 1 fails for good while rank 0 would sleep for ever."""
    run.start(*run.light("--steps", "40", "--fault", "hang@0:15:0", "--fault", "exit7@1:15:0")).finish(7)
    failed_for_good(run, 7)


def test_several_faults_one_after_another_A3_with_a_child_A7_a_stop_and_a_kill(run: Run) -> None:
    """Of a rank that is ended, a child that has left it is ended as well."""
    holds = ("--hold", "25", "--hold", "45:2", "--hold", "65:3")
    run.start(*run.light("--steps", "80", "--fault", "child@1:5", *holds))
    pids = [run.at_work(10)[1].pid]
    child = int(run.eventually("the child", lambda: re.search(r"child (\d+)", run.output.read_text()))[1])
    assert not gone(child)
    kill_hard(pids[0])
    run.reached(15, generation=2)
    assert gone(child)
    run.closed(1)
    pids.append(run.reached(30, generation=2)[1].pid)
    os.kill(pids[1], signal.SIGSTOP)
    run.closed(2)
    pids.append(run.reached(50, generation=3)[0].pid)
    kill_hard(pids[2])
    run.finish()
    assert [(fault.state, fault.cause) for fault in run.faults()] == [("recovered", "host_software")] * 3
    assert all(fault.lost_steps is not None and fault.lost_steps <= 2 for fault in run.faults())
    assert run.job().generation == 4 and all(gone(pid) for pid in pids)
    attempts = [run.incident(number).attempts for number in range(3)]
    assert [len(each) for each in attempts] == [1, 1, 1], (attempts, run.said())
    by_culprit = sorted((attempt.culprits, "job-control stop" in attempt.summary) for (attempt,) in attempts)
    assert by_culprit == [((0,), False), ((1,), False), ((1,), True)]
