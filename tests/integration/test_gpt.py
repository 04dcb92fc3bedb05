"""The real thing: a GPT in DDP over gloo, and an ordinary torchrun script. The end must be the same to the last bit."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .driver import GPT, HERE, Run, kill_hard

STEPS = 40
MODEL = (
    "--steps", str(STEPS), "--layers", "1", "--width", "32", "--context", "32", "--global-batch", "8",
    "--step-time", "0.05", "--checkpoint-every-steps", "10",
)  # fmt: skip
TIMEOUT_S = 480


def start(run: Run, *options: str) -> Run:
    return run.start(str(GPT), *MODEL, "--out", str(run.work / "final"), nproc=2, nodes="2", options=options)


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


def same_end(run: Run, unfaulted: dict[int, str]) -> None:
    """One recovery, and the same weights. How many steps it cost is up to the interval that snapshots of every step allow
    on a busy machine; a node that was slow to call a new server may have been looked into, and found well."""
    run.finish()
    assert finals(run) == unfaulted
    assert sorted({fault.verdict for fault in run.faults()} | {"no fault"}) == ["no fault", "recovered"]
    (fault,) = [fault for fault in run.faults() if fault.verdict == "recovered"]
    assert fault.cause == "host_software"
    assert fault.restored_step is not None and fault.restored_step > 0


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_F3_a_rank_is_killed_inside_a_collective_job(run: Run, unfaulted: dict[int, str]) -> None:
    """The time-out of the collective is half an hour: only the verdict can end the wait of the survivors."""
    start(run).live_step(14)
    kill_hard(run.pids()[3])
    same_end(run, unfaulted)
    assert len(run.faults()) == 1 and run.job().generation == 2
    assert run.incident().attempts[0].cold_nodes == 0


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_a_rank_is_stopped(run: Run, unfaulted: dict[int, str]) -> None:
    start(run).live_step(14)
    os.kill(run.pids()[1], signal.SIGSTOP)
    same_end(run, unfaulted)
    assert run.incident().attempts[0].culprits == (1,)


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_the_node_of_rank_0_is_lost_and_the_server_is_killed_in_the_recovery(
    run: Run, unfaulted: dict[int, str]
) -> None:
    start(run, "--spares", "1").live_step(14)
    lost = next(rank.node for rank in run.live().ranks if rank.rank == 0)
    server = run.server_pid()
    kill_hard(run.launchers()[lost])
    kill_hard(server)
    same_end(run, unfaulted)
    assert run.job().generation == 2


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_everything_is_killed_and_resumed_from_the_disk(run: Run, unfaulted: dict[int, str]) -> None:
    start(run).live_step(25)
    run.eventually("a checkpoint", lambda: run.live().checkpoint_step >= 10)
    os.kill(run.front.pid, signal.SIGSTOP)
    kill_hard(*run.everything(), run.server_pid())
    run.front.wait()
    run.check_nothing_left()
    start(run).finish()
    assert finals(run) == unfaulted


@pytest.mark.slow
@pytest.mark.timeout(TIMEOUT_S)
def test_an_unmodified_torchrun_script_recovers_by_its_own_checkpoint(make_run: Callable[..., Run]) -> None:
    """C3: the keys that an older generation has left in the store are not seen by the next."""
    ends = []
    for faulted in (False, True):
        run = make_run()
        run.start(str(HERE / "torchrun_script.py"), "--folder", str(run.work), nproc=2)
        if faulted:
            run.eventually("its checkpoint", (run.work / "saved.pt").exists)
            kill_hard(run.pids()[0])
        run.finish()
        ends.append((run.work / "final").read_text())
        begins = re.findall(r"begins at (\d+), stale keys: (\w+)", run.output.read_text())
        assert {stale for _, stale in begins} == {"False"}
        assert len(begins) == (4 if faulted else 2)
        assert [fault.state for fault in run.faults()] == (["recovered"] if faulted else [])
    assert ends[0] == ends[1]
    assert Path(run.work / "saved.pt").exists()
