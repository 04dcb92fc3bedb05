"""The real thing: a GPT in DDP over gloo, and an ordinary torchrun script. The end must be the same to the last bit."""

import os
import re
import signal

import pytest

from keepstep.server import views

from .driver import GPT, HERE, Run, kill_all, kill_hard

STEPS = 40
MODEL = (
    "--steps", str(STEPS), "--layers", "1", "--width", "32", "--context", "32", "--global-batch", "8",
    "--step-time", "0.1", "--checkpoint-every-steps", "10",
)  # fmt: skip
TIMEOUT_S = 900


def start(run: Run, *options: str, nodes: int = 1, holds: str = "") -> Run:
    """Two ranks, on one node or on two: a node costs an import of torch, and the end is the same. ``holds``: see held.py."""
    held = (str(HERE / "held.py"), str(run.work), holds) if holds else ()
    script = (*held, str(GPT), *MODEL, "--out", str(run.work / "final"))
    return run.start(*script, nproc=2 // nodes, nodes=str(nodes), options=options)


def finals(run: Run) -> dict[int, str]:
    """Rank -> digest of its last weights; of the last generation that got there."""
    lines = [line.split() for line in (run.work / "final").read_text().splitlines()]
    assert {int(step) for _, _, step, _ in lines} == {STEPS}
    return {int(rank): digest for _, rank, _, digest in lines}


@pytest.fixture(scope="session")
def unfaulted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    run = Run(tmp_path_factory.mktemp("unfaulted"))
    try:
        start(run).finish()
        assert run.faults() == []
        return finals(run)
    finally:
        run.close()


def recoveries(run: Run, count: int) -> list[views.IncidentReport]:
    """Of the first faults of the job. A node that was slow to call a new server may have been looked into besides, and found
    well."""
    found = [fault for fault in sorted(run.faults(), key=lambda fault: fault.opened_s) if fault.verdict != "no fault"]
    for fault in found[:count]:
        assert (fault.verdict, fault.cause) == ("recovered", "host_software")
        assert fault.restored_step is not None and fault.restored_step > 0
    return [run.incident(run.faults().index(fault)) for fault in found[:count]]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_F3_ranks_die_and_stop_inside_a_collective_job_that_is_resumed_from_the_disk_at_last(
    run: Run, unfaulted: dict[int, str]
) -> None:
    """The time-out of the collective is half an hour: only the verdict can end the wait of the survivors."""
    holds = "20,28:2,36:3"
    start(run, holds=holds).live_step(4)
    run.settled()
    kill_hard(run.pids()[1])
    run.closed(1)
    os.kill(run.pids()[0], signal.SIGSTOP)
    run.closed(2)
    run.eventually("a checkpoint", lambda: run.live().checkpoint_step >= 10)
    os.kill(run.front.pid, signal.SIGSTOP)  # or it would start the server again
    kill_all([*run.everything(), run.server_pid()])
    run.front.wait()
    run.check_nothing_left()
    start(run, holds=holds).finish()
    assert finals(run) == unfaulted
    attempts = [report.attempts[0] for report in recoveries(run, 2)]
    assert [attempt.culprits for attempt in attempts] == [(1,), (0,)]
    assert [attempt.cold_nodes for attempt in attempts] == [0, 0]


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_the_node_of_rank_0_is_lost_and_the_server_is_killed_in_the_recovery(
    run: Run, unfaulted: dict[int, str]
) -> None:
    start(run, "--spares", "1", nodes=2, holds="20").live_step(4)
    run.settled()
    lost = next(rank.node for rank in run.live().ranks if rank.rank == 0)
    server = run.server_pid()
    kill_hard(run.launchers()[lost])
    kill_hard(server)
    run.finish()
    assert finals(run) == unfaulted
    assert len(recoveries(run, 2)) == 1 and run.job().generation == 2


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_an_unmodified_torchrun_script_recovers_by_its_own_checkpoint(run: Run) -> None:
    """C3: the keys that an older generation has left in the store are not seen by the next."""
    steps = run.work / "steps"
    run.start(str(HERE / "torchrun_script.py"), "--folder", str(run.work), "--hold", "12", nproc=2)
    run.eventually("the step before its hold", lambda: steps.exists() and len(steps.read_text().splitlines()) == 12)
    run.settled()
    kill_hard(run.pids()[0])
    run.finish()
    begins = re.findall(r"begins at (\d+), stale keys: (\w+)", run.output.read_text())
    assert {stale for _, stale in begins} == {"False"}
    assert len(begins) == 4 and sorted({int(step) for step, _ in begins})[1] >= 5
    assert [fault.state for fault in run.faults()] == ["recovered"]
    weights: dict[int, set[str]] = {}
    lines = [line.split() for line in steps.read_text().splitlines()]
    for step, digest in lines:
        weights.setdefault(int(step), set()).add(digest)
    assert list(weights) == list(range(30)) and len(lines) > 30, "some steps came twice"
    assert all(len(digests) == 1 for digests in weights.values()), "and each came out as before"
