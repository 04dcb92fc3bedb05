"""``keepstep run`` with real processes: the front, its server, its launchers, plain Python ranks."""

import os
import signal

import msgspec
import pytest

from keepstep.adapters.database.opening import open_journal
from keepstep.core.decision import Decision
from keepstep.core.facts import JobStopRequested, Witnessed
from keepstep.core.intents import Launch
from keepstep.server import views

pytestmark = pytest.mark.timeout(600)
"""Each wait has its own bound, and there are several."""


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def records(run):
    journal = open_journal(run.state / "journal.db", read_only=True)
    try:
        return [entry.record for entry in journal.read()]
    finally:
        journal.close()


def launched_generations(run, job):
    intents = [i for record in records(run) if isinstance(record, Decision) for i in record.intents]
    return [(i.generation, i.node) for i in intents if isinstance(i, Launch) and i.job == job]


def test_a_job_runs_and_ends_well_and_can_be_run_again_in_the_spelling_of_torchrun(run, stepping, steps):
    one = run("--nproc-per-node", 2, "--nodes", 2, "--job", "j", stepping, 10)
    assert one.end() == 0, one.text() + one.server_log()
    assert {(g, r) for g, r, _, _ in steps()} == {(1, 0), (1, 1), (1, 2), (1, 3)}
    assert "exit code 0" in one.text()
    again = run("--standalone", "--nnodes=1", "--nproc_per_node=2", "--job", "j", stepping, 3)
    assert again.end() == 0, again.text()
    assert sorted(launched_generations(again, "j")) == [(1, "j-n0"), (1, "j-n1"), (2, "j-n0")]
    assert not any(alive(pid) for _, _, _, pid in steps())


def test_a_killed_server_is_replaced_and_a_killed_rank_is_brought_back_and_told_of(run, stepping, steps):
    one = run("--nproc-per-node", 2, "--job", "j", stepping, "50+")
    one.wait_for(lambda: len(steps()) > 20, "steps")
    first = one.server_pid()
    os.kill(first, signal.SIGKILL)
    one.wait_for(lambda: one.server_pid() not in (0, first), "another server")
    assert {generation for generation, _, _, _ in steps()} == {1}
    os.kill(next(pid for _, rank, _, pid in steps() if rank == 1), signal.SIGKILL)
    assert one.end() == 0, one.text() + one.server_log()
    assert {generation for generation, _, _, _ in steps()} == {1, 2}
    assert [generation for generation, _ in launched_generations(one, "j")] == [1, 2]
    assert "signal 9" in one.text()
    assert "keepstep incident show inc-" in one.text()


def test_launcher_killed_with_a_spare(run, stepping, steps):
    one = run("--nproc-per-node", 1, "--nodes", 2, "--spares", 1, "--job", "j", stepping, "50+")
    one.wait_for(lambda: len(steps()) > 20, "steps")
    os.kill(one.launchers()["j-n1"], signal.SIGKILL)
    assert one.end() == 0, one.text() + one.server_log()
    assert {node for generation, node in launched_generations(one, "j") if generation == 2} == {"j-n0", "j-n2"}
    witnessed = [record for record in records(one) if isinstance(record, Witnessed)]
    assert any(w.node == "j-n1" and w.verdict == "process_gone" for w in witnessed)
    assert not any(alive(pid) for _, _, _, pid in steps())


def test_every_launcher_killed(run, stepping, steps):
    one = run("--nproc-per-node", 1, "--job", "j", stepping, "50+")
    one.wait_for(lambda: len(steps()) > 5, "steps")
    os.kill(one.launchers()["j-n0"], signal.SIGKILL)
    assert one.end() != 0
    assert "every launcher of the job has ended" in one.text()
    assert not any(alive(pid) for _, _, _, pid in steps())


def test_a_second_ctrl_c_kills(run, tmp_path, steps):
    """Its launcher stands still, so that the first one ends nothing, however long this test takes to look."""
    script = tmp_path / "stubborn.py"
    script.write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"open({str(tmp_path / 'steps.log')!r}, 'a').write(f'1 0 0 {{os.getpid()}}\\n')\n"
        "time.sleep(600)\n"
    )
    one = run("--job", "j", script)
    one.wait_for(steps, "the rank runs")
    os.kill(one.launchers()["j-n0"], signal.SIGSTOP)
    one.process.send_signal(signal.SIGINT)
    one.wait_for(lambda: "SIGINT: ending the job; once more kills it" in one.text(), "the first is taken")
    one.wait_for(lambda: any(isinstance(record, JobStopRequested) for record in records(one)), "the server knows")
    one.process.send_signal(signal.SIGINT)
    assert one.end() == 130
    assert not any(alive(pid) for _, _, _, pid in steps())


def test_others_come_and_go_beside_a_running_job_until_it_is_stopped_from_another_terminal(
    run, stepping, steps, keepstep
):
    one = run("--job", "one", stepping, "50+")
    one.wait_for(lambda: len(steps()) > 5, "steps")
    server = one.server_pid()

    def undisturbed():
        assert one.process.poll() is None, one.text()
        return one.server_pid() == server and launched_generations(one, "one") == [(1, "one-n0")]

    beside = run("--job", "two", stepping, 3)
    assert beside.end() == 0, beside.text()
    assert undisturbed()

    namesake = run("--job", "one", stepping, 3)
    assert namesake.end() == 1
    assert "already runs" in namesake.text()
    assert undisturbed()

    # As Slurm and Kubernetes start it: --server and --node, the front becomes the launcher.
    address = (one.state / "server.address").read_text().strip()
    launcher = run("--server", address, "--node", "here", "--job", "three", stepping, 3)
    assert launcher.end() == 0, launcher.text()
    assert launched_generations(launcher, "three") == [(1, "here")]
    assert undisturbed()

    live = keepstep("jobs", "--json", "--state-dir", one.state)
    (job,) = [job for job in msgspec.json.decode(live.stdout, type=views.Jobs).jobs if job.id == "one"]
    assert (job.state, job.ranks) == ("running", 1)
    stopped = keepstep("stop", "one", "--reason", "enough", "--state-dir", one.state)
    assert stopped.returncode == 0, stopped.stderr
    assert one.end() != 0
    assert "enough" in one.text()


def test_a_server_that_cannot_start_is_explained(run, stepping, tmp_path):
    (tmp_path / "state" / "journal.db").write_bytes(os.urandom(8192))
    one = run("--job", "j", stepping, 3)
    assert one.end() == 1
    assert "server.log" in one.text()
    assert "journal.db" in one.text()
