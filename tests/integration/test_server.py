"""The control plane dies, stands still or stays away: no step stops, a recovery goes on, nothing is launched twice."""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from keepstep.adapters.server_link.address import parse_address
from keepstep.core import facts as f
from keepstep.core.decision import Decision
from keepstep.core.ids import JobId, Session
from keepstep.core.intents import Launch
from keepstep.server import views
from keepstep.wire import messages as m

from .driver import Cluster, Job, Line, Run, kill_hard


def records(job: Job) -> list[object]:
    journal = job.open_journal()
    try:
        return [entry.record for entry in journal.read()]
    finally:
        journal.close()


def launches(job: Job) -> list[tuple[int, str]]:
    orders = [i for r in records(job) if isinstance(r, Decision) for i in r.intents]
    return [(i.generation, i.node) for i in orders if isinstance(i, Launch) and i.job == job.name]


class Standing:
    """One long job that many tests fault, each at another instant."""

    def __init__(self, folder) -> None:
        self._folder, self._count = folder, 0
        self.run: Run | None = None
        self.faults = 0

    def healthy(self) -> Run:
        """The job, running without an open incident; another one if the last test broke it."""
        if self.run is not None and self.run.front.poll() is None and self._is_quiet(self.run):
            return self.run
        self.close()
        self._count += 1
        run = self.run = Run(self._folder / f"standing{self._count}")
        self.faults = 0
        run.start(*run.light("--steps", "1000000", "--step-time", "0.01"), nodes="2")
        run.at_work(10)
        return run

    def _is_quiet(self, run: Run) -> bool:
        live = run.query("live", views.Live, job=run.name)
        return live is not None and live.incident is None and live.state == "running"

    def close(self) -> None:
        if self.run is not None:
            self.run.close()


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    made = Standing(tmp_path_factory.mktemp("standing"))
    yield made
    made.close()


DELAYS_MS = range(0, 625, 25)
SLICE_MS = {0, 50, 100, 200, 300, 450, 600}


@pytest.mark.parametrize(
    "delay_ms", [pytest.param(ms, marks=() if ms in SLICE_MS else pytest.mark.deep) for ms in DELAYS_MS]
)
def test_the_server_is_killed_at_an_instant_of_a_recovery(standing: Standing, delay_ms: int) -> None:
    """SIGKILL of a rank, then of the server so much later; the front starts it again and the recovery goes on."""
    run = standing.healthy()
    before = newest(run)
    seen = len(run.trace())
    kill_hard(before[(delay_ms // 25) % 4].pid)
    time.sleep(delay_ms / 1000)
    kill_hard(run.server_pid())
    standing.faults += 1
    (fault,) = run.closed(standing.faults)[standing.faults - 1 :]
    assert (fault.state, fault.cause) == ("recovered", "host_software")
    assert fault.lost_steps is not None and fault.lost_steps <= 2
    generation = before[0].generation + 1
    run.reached(max(line.step for line in before) + 5, generation)
    assert {line.generation for line in run.trace()[seen:]} <= {generation - 1, generation}, "one new generation"
    assert run.live().generation == generation
    again = [node for g, node in launches(run) if g == generation]
    assert len(again) == len(set(again)) == 2, f"launched twice: {again}"
    run.check_trace()


def newest(run: Run) -> list[Line]:
    """The newest line of each rank, of the newest generation."""
    lines = run.reached(0, max(line.generation for line in run.trace()))
    assert len(lines) == 4
    return lines


def test_B1_B4_late_words_about_an_old_generation_change_nothing_and_somebody_elses_are_refused(
    standing: Standing,
) -> None:
    run = standing.healthy()
    before = newest(run)
    generation = before[0].generation
    kill_hard(before[1].pid)
    standing.faults += 1
    run.closed(standing.faults)

    def told() -> list[f.RankExited]:
        return [r for r in records(run) if isinstance(r, f.RankExited) and r.generation == generation]

    old = told()
    assert len(old) == 1
    assert _report(run, *old * 3) == 0
    run.reached(max(line.step for line in before) + 5, generation + 1)
    live = run.live()
    assert (live.generation, live.incident, live.state) == (generation + 1, None, "running")
    assert len(run.closed(standing.faults)) == standing.faults
    assert told() == old

    def refused() -> bool:
        return any(isinstance(r, f.RequestRefused) and "RankExited" in r.what for r in records(run))

    run.eventually("the refusal", refused)


def test_training_goes_on_without_a_server_and_facts_arrive_once_afterwards(cluster: Cluster) -> None:
    """It stands still for a while; then it dies, and another one comes later."""
    server = cluster.serve()
    script = cluster.light("--steps", "260", "--checkpoint-every-steps", "20", "--step-time", "0.04", "--hold", "230")
    pids = [cluster.launch(node, *script) for node in ("one", "two")]
    cluster.reached(15)
    os.kill(server, signal.SIGSTOP)
    cluster.reached(105, generation=1)
    os.kill(server, signal.SIGCONT)
    cluster.eventually("the commits of the first absence", lambda: {40, 60, 80} <= set(committed(cluster)))
    kill_hard(server)
    cluster.process(server).wait()
    cluster.reached(220, generation=1)
    cluster.serve()
    cluster.release()
    assert [cluster.exit_code(pid) for pid in pids] == [0, 0]
    assert cluster.faults() == [] and {line.generation for line in cluster.trace()} == {1}
    steps = committed(cluster)
    assert set(range(40, 200, 20)) <= set(steps), f"commits of the absences are missing: {steps}"
    # Every launcher of the job hears of a commit; each says it once.
    assert all(steps.count(step) <= 2 for step in steps), steps
    cluster.check_trace()
    cluster.check_nothing_left()


def committed(job: Job) -> list[int]:
    return [record.step for record in records(job) if isinstance(record, f.CheckpointCommitted)]


def test_a_rank_that_dies_while_the_server_is_away_is_recovered_when_it_is_back(cluster: Cluster) -> None:
    server = cluster.serve()
    script = cluster.light("--steps", "60", "--hold", "30")
    pids = [cluster.launch(node, *script) for node in ("one", "two")]
    lines = cluster.reached(15)
    kill_hard(server)
    cluster.process(server).wait()
    kill_hard(lines[1].pid)
    cluster.serve()
    assert [cluster.exit_code(pid) for pid in pids] == [0, 0]
    (fault,) = cluster.faults()
    assert (fault.state, fault.cause) == ("recovered", "host_software")
    cluster.check_trace()
    cluster.check_nothing_left()


def test_C2_a_launcher_that_finds_no_server_and_makes_no_progress_fences_itself(cluster: Cluster) -> None:
    """Its ranks wait for ever for a rank of another node: they are ended after the lease, and nothing is left."""
    server = cluster.serve()
    script = cluster.light("--steps", "100000")
    first, second = (cluster.launch(node, *script) for node in ("one", "two"))
    lines = cluster.reached(15)
    kill_hard(server)
    cluster.process(server).wait()
    kill_hard(second)
    survivor = next(line.pid for line in lines if line.node == "one")
    cluster.eventually("the end of the surviving rank", lambda: not _alive(survivor))
    assert cluster.process(first).poll() is None, "the launcher itself waits for a server"


def _alive(pid: int) -> bool:
    from .driver import gone

    return not gone(pid)


def test_a_healthy_job_during_a_status_time_out_and_B16_while_the_server_dies_C17_no_step_is_lost(run: Run) -> None:
    """ProbeFailed facts and silent clients are no evidence, nor is the server's own death: nothing is opened or fenced."""
    run.start(*run.light("--steps", "120", "--hold", "100"), nodes="2")
    run.reached(10)
    address = run.state.address()
    assert address is not None
    silent = [parse_address(address).connect(60.0) for _ in range(3)]
    probes = [
        f.ProbeFailed(source=source, job=JobId(run.name), detail=f"time-out {number}")
        for number in range(20)
        for source in ("status", "monitor")
    ]
    assert _report(run, *probes) == len(probes)
    for link in silent:
        link.close()
    for step in (20, 50):
        run.reached(step)
        kill_hard(run.server_pid())
    run.release()
    run.finish()
    assert run.faults() == [] and run.job().generation == 1
    assert {line.generation for line in run.trace()} == {1}


def _report(run: Run, *facts: f.Fact) -> int:
    """As a front of the job; how many were taken before it was cut off, if it was."""
    address = run.state.address()
    assert address is not None
    with parse_address(address).connect(60.0) as link, link.makefile("rb") as answers:
        hello = m.Hello(
            protocol=m.PROTOCOL, role="front", token=run.state.token(), job=JobId(run.name), session=Session("words"),
        )  # fmt: skip
        reports = [m.Report(number=number, fact=fact) for number, fact in enumerate(facts, 1)]
        link.sendall(b"".join(map(m.encode, [hello, *reports])))
        taken = 0
        while taken < len(facts) and (head := answers.read(4)):
            message = m.decode(answers.read(int.from_bytes(head, "big")))
            taken = message.number if isinstance(message, m.Ack) else taken
    return taken
