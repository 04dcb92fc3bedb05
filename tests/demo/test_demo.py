"""The command itself: options, the out directory, one whole demo, and Ctrl-C."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keepstep.adapters.database.opening import open_journal
from keepstep.core.policy import Policy
from keepstep.demo.faults import BY_NAME
from keepstep.demo.patience import be_patient
from keepstep.demo.plan import DemoPlan, OutDirectory, OutDirectoryTaken, default_steps, example_script
from keepstep.demo.processes import left_behind
from keepstep.server.policy_file import read_policy
from keepstep.server.replay import replay

END_S = 600.0
"""Only bounds a failure: on a busy machine the imports of torch alone take a minute."""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "keepstep", "demo", *arguments]


def test_a_machine_that_is_busy_is_no_fault_of_the_job(plan: DemoPlan) -> None:
    be_patient(plan.state)
    journal = open_journal(plan.state.journal, read_only=True)
    try:
        known = replay(journal).registry.policy
    finally:
        journal.close()
    assert known is not None
    policy = read_policy(known.overrides)
    assert policy.hang.step_floor_s > Policy().hang.step_floor_s
    assert policy.silence.lease_s > Policy().silence.lease_s


def nothing_of(out: Path) -> bool:
    """Waits for what is on its way out."""
    deadline = time.monotonic() + END_S
    while found := strays(out):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return True


def strays(out: Path) -> list[str]:
    """Command lines of processes that were started for a state directory under ``out``."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            line = Path(f"/proc/{name}/cmdline").read_bytes().decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(out) in line and int(name) != os.getpid():
            found.append(line.replace("\0", " "))
    return found


def test_list_names_every_fault() -> None:
    shown = subprocess.run(command("--list"), capture_output=True, text=True, timeout=END_S, check=True)
    assert all(name in shown.stdout for name in BY_NAME)


def test_an_unknown_fault_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    refused = subprocess.run(
        command("--fault", "meteor", "--out", str(tmp_path / "out")), capture_output=True, text=True, timeout=END_S
    )
    assert refused.returncode == 2 and "meteor" in refused.stderr and "rank-killed" in refused.stderr
    assert not (tmp_path / "out").exists()


def test_the_out_directory_is_cleared_only_if_a_demo_made_it(tmp_path: Path) -> None:
    with OutDirectory(tmp_path / "out"):
        (tmp_path / "out" / "old").mkdir()
        with pytest.raises(OutDirectoryTaken, match="another demo runs"):
            OutDirectory(tmp_path / "out")
    with OutDirectory(tmp_path / "out"):
        assert not (tmp_path / "out" / "old").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    with pytest.raises(OutDirectoryTaken, match="not empty"):
        OutDirectory(mine)
    assert (mine / "thesis.tex").read_text() == "years of work"


def test_what_is_kept(tmp_path: Path) -> None:
    with OutDirectory(tmp_path) as directory:
        for name in ("run", "checkpoints", "logs"):
            (tmp_path / "state" / name).mkdir(parents=True)
        directory.tidy(keep=True)
        assert sorted(path.name for path in (tmp_path / "state").iterdir()) == ["checkpoints", "logs"]
        directory.tidy(keep=False)
        assert [path.name for path in (tmp_path / "state").iterdir()] == ["logs"]


def test_the_example_is_found_and_steps_grow_with_the_faults() -> None:
    assert example_script().name == "train_gpt.py"
    assert default_steps(8) > default_steps(1) > 40


def test_left_behind_sees_what_was_started_for_the_state_directory(plan: DemoPlan) -> None:
    stray = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", str(plan.state.path)])
    try:
        deadline = time.monotonic() + END_S
        while [found.pid for found in left_behind(plan)] != [stray.pid]:
            assert time.monotonic() < deadline, f"{stray.pid} is not found, but {left_behind(plan)}"
            time.sleep(0.01)
    finally:
        stray.kill()
        stray.wait()
    assert left_behind(plan) == []


@pytest.mark.slow
@pytest.mark.timeout(3 * END_S)
def test_a_whole_demo_with_one_fault_proves_itself_and_leaves_nothing(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out"
    arguments = ("--plain", "--fault", "rank-killed", "--steps", "90", "--out", str(out))
    shown = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=END_S)
    assert shown.returncode == 0, shown.stdout[-6000:] + shown.stderr
    assert "1 faults, 1 recoveries" in shown.stdout and "bit for bit" in shown.stdout
    assert "inc-0002 diagnose: host_software" in shown.stdout and "ranks at fault: 3" in shown.stdout
    assert (out / "report.txt").exists() and not (out / "state" / "checkpoints").exists()
    assert nothing_of(out)


@pytest.mark.slow
@pytest.mark.timeout(3 * END_S)
def test_ctrl_c_ends_everything_that_the_demo_started(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "out"
    demo = subprocess.Popen(
        command("--plain", "--fault", "rank-killed", "--out", str(out)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        deadline = time.monotonic() + END_S
        while not any("keepstep.launcher" in line for line in strays(out)):
            assert time.monotonic() < deadline and demo.poll() is None, f"no launcher; demo: {demo.poll()}"
            time.sleep(0.05)
        demo.send_signal(signal.SIGINT)
        _, said = demo.communicate(timeout=END_S)
    finally:
        demo.kill()
        demo.communicate()
    assert demo.returncode == 130 and b"interrupted" in said, said.decode()
    assert nothing_of(out)
