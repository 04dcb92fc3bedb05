"""Life without a server, with a stopped launcher, and the ways in which a launcher ends its ranks without an order."""

import json
import os
import signal
import subprocess
import sys
import time

from keepstep.adapters.local import procfs
from keepstep.core.facts import Answered, Fenced, JobStopRequested, JobSubmitted, NodeJoined, NodeLeft, RankExited
from keepstep.core.intents import Fence
from keepstep.wire.messages import Beat, JobEnded, Report, Superseded

from .driver import DEADLINE_S, Bench, alive, clean_environment, eventually

SLEEPER = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"
STEPPER = (
    "import os, time\n"
    "from keepstep.wire.progress import ProgressCell\n"
    "cell = ProgressCell(os.environ['KEEPSTEP_PROGRESS_FILE'])\n"
    "cell.enter('step')\n"
    "print('up', flush=True)\n"
    "step = 0\n"
    "while True:\n"
    "    step += 1; cell.step_done(step, 1_000_000, 0.5); time.sleep(0.01)\n"
)


def test_launcher_introduces_job_and_node(bench: Bench) -> None:
    joined = bench.start(SLEEPER, "--min-nodes", "1", "--max-nodes", "3", "--spare", nproc=3)
    (submitted,) = bench.server.facts(JobSubmitted)
    assert (submitted.spec.argv, submitted.spec.nproc_per_node) == (bench.argv, 3)
    assert (submitted.spec.elasticity.min_nodes, submitted.spec.elasticity.max_nodes) == (1, 3)
    assert bench.process is not None
    assert (joined.pid, joined.running_generation, len(joined.devices), joined.spare) == (bench.process.pid, 0, 3, True)
    assert bench.server.hellos[0].role == "launcher"


def test_server_gone_and_back_hears_everything_once_and_in_order(bench: Bench) -> None:
    bench.start(STEPPER, nproc=3)
    pids = bench.launch(nproc=3).pids
    bench.wait_log(2, "up")
    bench.server.stop()
    for rank in (2, 0):
        os.kill(pids[rank], signal.SIGKILL)
        # Told in the order in which their parent collects them; what is still a zombie is not collected.
        eventually(lambda rank=rank: procfs.stat(pids[rank]) is None, "the kill")  # type: ignore[misc]
    assert alive(pids[1]), "the job trains on without its server"
    already = len(bench.server.facts(NodeJoined))
    bench.server.start()
    joined = bench.server.next_fact(NodeJoined, already)
    assert joined.running_generation == 1
    assert bench.server.hellos[-1].session == bench.server.hellos[0].session
    assert [end.rank for end in bench.exits(2)] == [2, 0]
    numbers = [m.number for m in bench.server.said if isinstance(m, Report)]
    assert numbers == sorted(set(numbers)), "each report once, in order"


def test_reports_without_acknowledgement_are_repeated_after_a_reconnect(bench: Bench) -> None:
    bench.start(SLEEPER)
    bench.server.acks = False
    pids = bench.launch().pids
    os.kill(pids[0], signal.SIGKILL)
    bench.exits(1)
    bench.server.stop()
    bench.server.acks = True
    bench.server.start()
    bench.exits(2)
    ends = [m for m in bench.server.said if isinstance(m, Report) and isinstance(m.fact, RankExited)]
    assert len({(m.number, m.fact.rank) for m in ends}) == 1, "the same report under the same number"
    answers = [m for m in bench.server.said if isinstance(m, Report) and isinstance(m.fact, Answered)]
    assert [m.number for m in answers] == [answers[0].number] * 2


def test_superseded_launcher_fences_itself(bench: Bench) -> None:
    bench.start(SLEEPER)
    pids = bench.launch(2).pids
    bench.server.send(Superseded(generation=1))
    bench.server.send(Superseded(generation=2))
    eventually(lambda: not any(alive(pid) for pid in pids.values()), "the self-fence")
    fence = Fence(job=bench.job, node=bench.node, session=bench.session, generation=2)
    outcome = bench.answer(bench.order(fence))
    assert isinstance(outcome, Fenced) and outcome.proof == "self_fenced"
    assert bench.server.facts(RankExited) == []


def test_older_superseded_generation_does_not_touch_a_newer_one(bench: Bench) -> None:
    bench.start(SLEEPER)
    pids = bench.launch(5).pids
    bench.server.send(Superseded(generation=4))
    os.kill(pids[0], signal.SIGKILL)
    bench.exits(1)
    assert alive(pids[1])


def test_cut_off_launcher_whose_ranks_do_not_move_fences_itself_after_the_lease(bench: Bench) -> None:
    bench.start(SLEEPER, "--lease-s", "0.5")
    pids = bench.launch(group_world_size=2).pids
    bench.server.stop()
    eventually(lambda: not any(alive(pid) for pid in pids.values()), "the self-fence")
    assert "no server for" in bench.said()


def test_a_job_on_one_node_may_be_silent_for_longer_than_a_lease(bench: Bench) -> None:
    """Nobody counts on its end: a dead server must not cost it a long evaluation (invariant 10)."""
    bench.start(SLEEPER, "--lease-s", "0.3")
    pids = bench.launch().pids
    bench.server.stop()
    time.sleep(2.0)
    assert all(alive(pid) for pid in pids.values())


def test_cut_off_launcher_whose_ranks_step_lets_them_train(bench: Bench) -> None:
    bench.start(STEPPER, "--lease-s", "0.5")
    pids = bench.launch().pids
    bench.wait_log(0, "up")
    bench.wait_log(1, "up")
    bench.server.stop()
    time.sleep(2.0)
    assert all(alive(pid) for pid in pids.values())
    already = len(bench.server.facts(NodeJoined))
    bench.server.start()
    assert bench.server.next_fact(NodeJoined, already).running_generation == 1


def test_silence_of_a_connected_server_is_no_reason_to_fence(bench: Bench) -> None:
    bench.start(SLEEPER, "--lease-s", "0.3")
    pids = bench.launch().pids
    seen = len(bench.server.beats())
    bench.server.wait(
        "20 more beats", lambda _: len([m for m in bench.server.said if isinstance(m, Beat)]) >= seen + 20 or None
    )
    assert all(alive(pid) for pid in pids.values())


def test_beats_carry_progress_state_and_cpu(bench: Bench) -> None:
    bench.start(STEPPER, nproc=1)
    pid = bench.launch(nproc=1).pids[0]

    def stepping(_: object) -> Beat | None:
        beats = [m for m in bench.server.said if isinstance(m, Beat) and m.ranks]
        return next((m for m in beats if m.ranks[0].step >= 3 and m.ranks[0].cpu_s > 0), None)

    vitals = bench.server.wait("a beat with progress", stepping).ranks[0]
    assert (vitals.rank, vitals.phase, vitals.loss, vitals.step_time_s) == (0, "step", 0.5, 0.001)
    os.kill(pid, signal.SIGSTOP)

    def stopped(_: object) -> Beat | None:
        beats = [m for m in bench.server.said if isinstance(m, Beat) and m.ranks]
        return next((m for m in beats if m.ranks[0].state == "T" and m.ranks[0].idle_s > 0.3), None)

    bench.server.wait("a beat that shows the stop", stopped)


def test_stopped_launcher_does_not_accuse_its_ranks(bench: Bench) -> None:
    """A laptop that was suspended, or a launcher under a debugger: the gap is not the ranks' idle time."""
    bench.start(SLEEPER, nproc=1)
    bench.launch(nproc=1)
    bench.wait_log(0, "up")
    bench.server.wait("a beat with a rank", lambda _: next((b for b in bench_beats(bench) if b.ranks), None))
    assert bench.process is not None
    os.kill(bench.process.pid, signal.SIGSTOP)
    time.sleep(2.0)
    before = bench.server.beats()[-1].ranks[0].idle_s
    seen = len(bench.server.beats())
    os.kill(bench.process.pid, signal.SIGCONT)
    beat = bench.server.wait("a beat after the stop", lambda _: next(iter(bench_beats(bench)[seen + 1 :]), None))
    later = bench_beats(bench)[seen]
    assert later.running_s <= 0.31 and beat.running_s <= 0.31
    assert later.ranks[0].idle_s <= before + 0.7, "at most three intervals count for the gap"


def bench_beats(bench: Bench) -> list[Beat]:
    return [m for m in bench.server.said if isinstance(m, Beat)]


def test_first_interrupt_asks_second_ends_at_once(bench: Bench) -> None:
    bench.start(SLEEPER)
    pids = bench.launch().pids
    assert bench.process is not None
    os.kill(bench.process.pid, signal.SIGINT)
    asked = bench.server.next_fact(JobStopRequested)
    assert "SIGINT" in asked.by
    assert all(alive(pid) for pid in pids.values())
    os.kill(bench.process.pid, signal.SIGINT)
    assert bench.wait_exit() == 130
    assert not any(alive(pid) for pid in pids.values())
    assert len(bench.server.facts(JobStopRequested)) == 1
    assert bench.server.next_fact(NodeLeft).session == bench.session
    assert len(bench.server.facts(NodeLeft)) == 1


def test_interrupt_without_a_server_ends_the_node(bench: Bench) -> None:
    bench.start(STEPPER)
    pids = bench.launch().pids
    bench.server.stop()
    assert bench.process is not None
    os.kill(bench.process.pid, signal.SIGTERM)
    assert bench.wait_exit() == 130
    assert not any(alive(pid) for pid in pids.values())


def test_end_of_the_job_is_heard_without_an_order_too(bench: Bench) -> None:
    bench.start(SLEEPER)
    pids = bench.launch().pids
    bench.server.send(JobEnded(job=bench.job, exit_code=9, message="over"))
    assert bench.wait_exit() == 9
    assert not any(alive(pid) for pid in pids.values())


def test_launcher_dies_with_the_front_that_started_it(bench: Bench) -> None:
    script = bench.script(SLEEPER)
    command = [
        sys.executable, "-m", "keepstep.launcher", "--server", f"unix:{bench.state}/s.sock", "--job", bench.job, "--node",
        bench.node, "--nproc-per-node", "1", "--state-dir", str(bench.state), "--", script,
    ]  # fmt: skip
    program = f"""
import os, subprocess
command = {command!r}
subprocess.run([*command[:3], "--die-with-parent", str(os.getpid()), *command[3:]])
"""
    front = subprocess.Popen(
        [sys.executable, "-c", program],
        env=clean_environment(),
        cwd=bench.folder,
    )
    try:
        joined = bench.server.next_fact(NodeJoined)
    finally:
        front.kill()
        front.wait(DEADLINE_S)
    eventually(lambda: not alive(joined.pid), "the end of the launcher")


def test_a_launcher_whose_front_has_ended_before_it_began_ends_as_well(bench: Bench) -> None:
    """Nobody would end it later: its parent is another one by now."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(DEADLINE_S)
    command = [
        sys.executable, "-m", "keepstep.launcher", "--server", f"unix:{bench.state}/s.sock", "--job", bench.job, "--node",
        bench.node, "--nproc-per-node", "1", "--state-dir", str(bench.state), "--die-with-parent", str(gone.pid), "--",
        bench.script(SLEEPER),
    ]  # fmt: skip
    done = subprocess.run(command, env=clean_environment(), cwd=bench.folder, timeout=DEADLINE_S)
    assert done.returncode == -signal.SIGKILL


ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from keepstep.launcher.wiring import main
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(arguments)
    print(json.dumps([code, said.getvalue()]))
"""


def test_bad_command_lines_say_what_to_do(bench: Bench) -> None:
    """A launcher that cannot begin leaves at once: one process tries them all."""
    script = bench.script(SLEEPER)
    tries = {
        ("--nproc-per-node", "1"): "no script is given",
        ("--nproc-per-node", "1", "--", "missing.py"): "there is no script 'missing.py'",
        ("--nproc-per-node", "0", "--", script): "at least one rank",
        ("--nproc-per-node", "1", "--min-nodes", "3", "--max-nodes", "2", "--", script): "1 <= min <= max",
        ("--nproc-per-node", "1", "--job", "a/b", "--", script): "without '/'",
        ("--nproc-per-node", "1", "--server", "http://x", "--", script): "write unix:",
    }
    asked = [["--server", "unix:/nowhere", "--job", "j", "--node", "n", *words] for words in tries]
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER], input=json.dumps(asked), capture_output=True, text=True, timeout=DEADLINE_S,
        env=clean_environment(), check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (words, said), (code, told) in zip(tries.items(), answers, strict=True):
        assert code == 2 and said in told, (words, told)
