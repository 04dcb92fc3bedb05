"""``keepstep drill``: read from a journal that the core wrote; begun against a real server and a scripted launcher."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.core.build import JOB, Plane, disk
from tests.server.conftest import DEADLINE_S, ScriptedLauncher, ServerProcess

from keepstep.adapters.database.opening import open_journal
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.cli.app import add_late
from keepstep.core import facts as f
from keepstep.core import intents as i
from keepstep.server.drill_views import DrillReport, Drills
from keepstep.server.state_dir import StateDir
from keepstep.server.views import JobView
from keepstep.wire.requests import Accepted

add_late(["drill"])

SIGKILL = 9


@pytest.fixture
def rehearsed(tmp_path: Path) -> Path:
    """A drill that passed, and one that failed since another rank died than the one that was hit; then all is steady."""
    plane = Plane()
    plane.inventories = {"n0": f.Inventory(disk=(disk(8),))}
    plane.start(spares=1)
    plane.tell(f.CheckpointCommitted(job=JOB, generation=1, step=10, key="disk-10", world_size=4))
    for dies in (2, 1):
        plane.tell(f.DrillRequested(job=JOB, kind="kill-rank", by="ann", rank=2))
        plane.answer(i.Inject, f.Done(detail="SIGKILL to rank 2 (pid 102)"))
        plane.now_s += 0.25
        plane.tell(plane.exited(dies, signal=SIGKILL))
        plane.recover()
    journal = open_journal(tmp_path / "journal.db")
    for at_s, record in plane.journal:
        journal.append(at_s, [record])
    journal.close()
    return tmp_path


def test_drills_are_listed_with_their_marks(rehearsed: Path, keepstep: Callable[..., Any]) -> None:
    told = keepstep("drill", "list", "--state-dir", rehearsed).stdout
    assert told.index("drill-0001") < told.index("drill-0002")
    assert "✓✓✓✓✓✓" in told and "✓✗✓✓✓✓" in told and "rank 2 on n1" in told.replace("\n", " ")
    found = msgspec.json.decode(keepstep("drill", "list", "--json", "--state-dir", rehearsed).stdout, type=Drills)
    assert [(x.id, x.state) for x in found.drills] == [("drill-0002", "failed"), ("drill-0001", "passed")]
    assert "no drill yet" in keepstep("drill", "list", "--job", "other", "--state-dir", rehearsed).stdout


def test_a_drill_is_shown_beside_its_limits(rehearsed: Path, keepstep: Callable[..., Any]) -> None:
    told = keepstep("drill", "show", "drill-0002", "--state-dir", rehearsed).stdout
    assert "drill-0002 · kill-rank of job job · failed" in told
    assert "✓ detected  noticed after 0.25 s (limit 30.0 s)" in told
    assert "✗ blamed    rank 2 on n1 was not named, but: " in told
    assert "keepstep incident show inc-0003" in told and "asked for by ann" in told
    shown = keepstep("drill", "show", "drill-0001", "--json", "--state-dir", rehearsed).stdout
    found = msgspec.json.decode(shown, type=DrillReport)
    assert found.times.detected_after_s == pytest.approx(0.25) and found.drill.incident == "inc-0002"
    unknown = keepstep("drill", "show", "drill-0009", "--state-dir", rehearsed)
    assert unknown.returncode == 1 and "the newest are: drill-0001, drill-0002" in unknown.stderr


def test_nothing_begins_where_nobody_agrees(rehearsed: Path, keepstep: Callable[..., Any]) -> None:
    done = keepstep("drill", "run", "job", "--kind", "kill-rank", "--rank", "2", "--state-dir", rehearsed)
    assert done.returncode == 2 and "say --yes" in done.stderr
    assert "kill-rank against rank 2 on n1 of job job: SIGKILL to one rank." in done.stderr
    assert "all 4 ranks stop" in done.stderr and "newest checkpoint is step 10" in done.stderr
    agreed = keepstep("drill", "run", "job", "--kind", "kill-rank", "--yes", "--state-dir", rehearsed)
    assert agreed.returncode == 1 and "no server has run" in agreed.stderr


# ---- against a server


class Working:
    """A launcher whose two ranks make steps in a thread, and die when they are told to, or not."""

    def __init__(self, server: ServerProcess) -> None:
        self.launcher = ScriptedLauncher(server)
        self.launcher.pump_until(lambda: self.launcher.ranks, "it runs")
        self.launcher.hold_state_of(1)
        self.refuses = False
        self.launcher.on_order = self._ordered
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._pump)
        self._thread.start()
        self._until_steady(server)

    def _until_steady(self, server: ServerProcess) -> None:
        deadline = time.monotonic() + DEADLINE_S
        with ToolClient(server.address, server.state.token()) as tool:
            while (job := tool.query("job", JobView, id="j")).incident is not None or job.state != "running":
                assert time.monotonic() < deadline, job
                time.sleep(0.02)

    def _ordered(self, order: i.Order) -> None:
        if not isinstance(order.intent, i.Inject) or order.number in self.launcher.answers:
            return
        if self.refuses:
            self.launcher.answers[order.number] = f.Failed(reason="rank 1 does not run here")
            return
        assert order.intent.rank is not None
        self.launcher.rank_exits(order.intent.rank, signal=SIGKILL)

    def _pump(self) -> None:
        while not self._over.is_set():
            self.launcher.pump()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.launcher.disconnect()


@pytest.fixture
def working(tmp_path: Path) -> Iterator[Working]:
    state = StateDir(tmp_path / "served")
    server = ServerProcess(state).patient().start()
    made = Working(server)
    yield made
    made.end()
    server.kill()
    Path(server.address.removeprefix("unix:")).unlink(missing_ok=True)


def test_one_is_begun_and_waited_for(working: Working, keepstep: Callable[..., Any]) -> None:
    def run(*options: str, kind: str = "kill-rank") -> Any:
        where = working.launcher.server.state.path
        return keepstep("drill", "run", "j", "--kind", kind, "--yes", *options, "--state-dir", where)

    passed = run("--rank", "1", "--wait")
    assert passed.returncode == 0, passed.stdout + passed.stderr
    assert "drill-0001 is being recovered from: inc-" in passed.stderr or "was injected" in passed.stderr
    assert "· passed" in passed.stdout and passed.stdout.count("✓") == 6
    for options, kind, says in (
        (("--rank", "7"), "kill-rank", "job j has no rank 7; see `keepstep ranks j`"),
        ((), "lose-node", "no spare stands by"),
    ):
        refused = run(*options, kind=kind)
        assert refused.returncode == 1 and says in refused.stderr
    working.refuses = True
    called_off = run("--wait", "--json")
    assert called_off.returncode == 75, called_off.stderr
    assert msgspec.json.decode(called_off.stdout, type=DrillReport).drill.state == "called_off"
    begun = msgspec.json.decode(run("--json").stdout, type=Accepted)
    assert begun.subject == "drill-0003"
