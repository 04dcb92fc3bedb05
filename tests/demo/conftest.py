"""A journal as a demo would have left it: real records through the real engine, no processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from keepstep.demo.driver import Act
from keepstep.demo.faults import BY_NAME, Done
from keepstep.demo.plan import DemoPlan
from keepstep.demo.watch import Watch

from .recorded import JOB, record


@pytest.fixture
def plan(tmp_path: Path) -> DemoPlan:
    made = DemoPlan(out=tmp_path, script=tmp_path / "train.py", steps=60, job=JOB)
    made.state.create()
    return made


@pytest.fixture
def watch(plan: DemoPlan) -> Iterator[Watch]:
    """Has read a journal in which rank 3 was killed at step 20 and the job recovered."""
    record(plan.state.journal)
    made = Watch(plan)
    made.read_journal()
    yield made
    made.close()


@pytest.fixture
def act(watch: Watch) -> Act:
    return Act(
        BY_NAME["rank-killed"],
        state="recovered",
        done=Done(text="SIGKILL to rank 3", rank=3),
        step=20,
        incident=watch.faults()[0],
    )
