"""What must not be taken for a fault: long phases, a stopped job, a suspended machine, a neighbour."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from .driver import BUILT_IN, QUICK, Run, kill_hard

STANDSTILL_S = 6.0
"""Longer than the floor of the step deadline, and than the lease of a silent launcher."""


def test_long_phases_are_no_hangs(make_run: Callable[..., Run]) -> None:
    """The steps take milliseconds; one rank is busy for seconds with something that it has declared, the others wait: in the
    first step, in an evaluation, in a checkpoint."""
    run = make_run(policy=QUICK)
    phases = [word for fault in ("slow@1:0", "evaluate@0:20", "checkpoint@0:35") for word in ("--fault", fault)]
    run.start(*run.light("--steps", "50", "--step-time", "0.005", *phases), nproc=2).finish()
    assert run.faults() == [] and {line.generation for line in run.trace()} == {1}


@pytest.mark.parametrize("what", ["ranks", "job", "machine"])
def test_everything_is_stopped_for_a_while(make_run: Callable[..., Run], what: str) -> None:
    """``job``: front, launchers and ranks, but not the server. ``machine``: the server as well, as in a suspend."""
    run = make_run(policy=BUILT_IN)
    run.start(*run.light("--steps", "100000"), nodes="2")
    pids = [line.pid for line in run.reached(20)]
    if what != "ranks":
        pids = run.everything()
    if what == "machine":
        pids.insert(0, run.server_pid())
    _send(pids, signal.SIGSTOP)
    time.sleep(STANDSTILL_S)
    # The other way round: who judges stands still first and goes on last, as it would be if all of it was at once.
    _send(pids[::-1], signal.SIGCONT)
    run.reached(max(line.step for line in run.trace()) + 20)
    run.front.terminate()
    run.finish(130)
    assert {line.generation for line in run.trace()} == {1}, "nothing was restarted"
    if what == "job":
        # Its launchers were silent for longer than a lease: unknown, looked into, and found to be no fault.
        assert {fault.verdict for fault in run.faults()} <= {"no fault"}
    else:
        assert run.faults() == []


def _send(pids: list[int], number: int) -> None:
    for pid in pids:
        os.kill(pid, number)


def test_a_second_run_beside_the_first(make_run: Callable[..., Run]) -> None:
    first = make_run()
    second = make_run(state=first.state.path)
    for run in (first, second):
        run.start(*run.light("--steps", "60", "--hold", "30"), nodes="2")
    kill_hard(first.reached(15)[0].pid)
    second.reached(15)
    assert first.server_pid() == second.server_pid()
    second.release()
    first.finish()
    second.finish()
    assert [fault.state for fault in first.faults()] == ["recovered"]
    assert second.faults() == []


def test_a_cold_start_says_why(run: Run) -> None:
    run.start(*run.light("--steps", "40", "--hold", "25"), options=("--cold-start",))
    kill_hard(run.at_work(10)[1].pid)
    run.finish()
    (attempt,) = run.incident().attempts
    assert (attempt.warm_nodes, attempt.cold_nodes) == (0, 1)
    assert "--cold-start was given" in run.output.read_text()


def test_a_preloaded_module_with_threads_forbids_the_warm_start(run: Run) -> None:
    (run.work / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(3600,), daemon=True, name='sleeper').start()\n"
    )
    script = run.work / "script.py"
    script.write_text("import time\nimport numpy\nprint('hello from the rank')\ntime.sleep(0.2)\n")
    run.start(str(script), options=("--preload", "threaded"))
    run.finish()
    text = run.output.read_text()
    assert "hello from the rank" in text
    assert "cold start, because" in text
