"""The review of a journal that was copied elsewhere is what the journal says, read without any of our reading."""

import collections
import math
import shutil
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from keepstep.adapters.database.opening import open_journal
from keepstep.cli.app import app
from keepstep.core.decision import Record
from keepstep.review.figures import Review
from keepstep.review.postmortem import Postmortem
from keepstep.sim.run import Simulation

from .raw_journal import Truth, read

RUNS = [("storm", 7), ("storm", 11), ("mixed", 7)]


def simulated(scenario: str, seed: int) -> tuple[tuple[float, Record], ...]:
    run = Simulation(scenario, seed)
    assert run.run().failure is None
    return tuple(run.server.journal.read())


@pytest.fixture(scope="module", params=RUNS, ids=lambda run: f"{run[0]}-{run[1]}")
def copied(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    """A journal file that lies alone in a folder, and what it says."""
    entries, tmp_path = simulated(*request.param), tmp_path_factory.mktemp("journal")
    (tmp_path / "server").mkdir()
    journal = open_journal(tmp_path / "server" / "journal.db")
    at_s, batch = entries[0][0], []
    for when, record in entries:
        if when != at_s:
            journal.append(at_s, batch)
            at_s, batch = when, []
        batch.append(record)
    journal.append(at_s, batch)
    journal.close()
    (tmp_path / "laptop").mkdir()
    shutil.copy(tmp_path / "server" / "journal.db", tmp_path / "laptop" / "copy.db")
    shutil.rmtree(tmp_path / "server")
    return tmp_path / "laptop" / "copy.db", read(entries)


def told(*arguments: object) -> bytes:
    done = CliRunner().invoke(app, ["report", *map(str, arguments)], prog_name="keepstep")
    assert done.exit_code == 0, done.output
    return done.stdout_bytes


def test_the_review_is_what_the_journal_says(copied: tuple[Path, Truth]) -> None:
    path, truth = copied
    text = told("week", "--journal", path, "--since", "1970-01-01", "--format", "json")
    review = msgspec.json.decode(text, type=Review)
    _same_time(review, truth)
    _same_recoveries(review, truth)
    _same_costs(review, truth)
    assert review.saves.n == len(truth.saves)
    by_node = collections.Counter(node for node, _ in truth.roots.values())
    for lemon in review.lemons:
        if lemon.kind == "node":
            assert lemon.failures <= by_node[lemon.name] + sum(x.state != "open" for x in truth.faults)


def _same_time(review: Review, truth: Truth) -> None:
    productive, total = truth.productive_and_total()
    assert math.isclose(review.time.total_gpu_h * 3600, total, rel_tol=1e-6)
    assert math.isclose(review.time.productive_gpu_h * 3600, productive, rel_tol=1e-4)
    assert review.time.ettr is not None and math.isclose(review.time.ettr, productive / total, rel_tol=1e-4)


def _same_recoveries(review: Review, truth: Truth) -> None:
    faults, found = truth.faults, review.recoveries
    recovered = [x for x in faults if x.state == "recovered"]
    assert (found.recovered.hits, found.n) == (len(recovered), len(faults))
    started = [x for x in faults if x.generations]
    first = [x for x in recovered if x.generations == 1]
    assert (found.first_restart.hits, found.first_restart.n) == (len(first), len(started))
    assert found.alone.hits == sum(not x.words_of_people for x in recovered)
    stages = {x.stage: x.every for x in found.stages}
    for name in ("isolating", "selecting", "restarting", "verifying"):
        spent = [x.stages[name] for x in recovered if name in x.stages]
        assert stages[name].n == len(spent)
        assert math.isclose(stages[name].max or 0.0, max(spent), abs_tol=1e-6)
    assert math.isclose(stages["all"].max or 0.0, max(x.down_s for x in recovered), abs_tol=1e-6)
    assert math.isclose(found.lost_steps.max or 0.0, max(x.lost_steps for x in recovered))


def _same_costs(review: Review, truth: Truth) -> None:
    causes = collections.Counter(x.cause for x in truth.faults)
    assert {x.name: x.incidents for x in review.cost.by_cause} == dict(causes)
    assert review.failures.n == len(truth.faults)


def test_every_incident_can_be_told(copied: tuple[Path, Truth]) -> None:
    path, truth = copied
    ended = [(id, x) for id, x in truth.incidents.items() if x.kind == "fault" and x.ended_s is not None]
    for id, x in ended[:3]:
        found = msgspec.json.decode(told("incident", id, "--journal", path, "--format", "json"), type=Postmortem)
        assert (found.record.state, found.record.cause, found.record.lost_steps) == (x.state, x.cause, x.lost_steps)
        moments = {m.what: m.after_s for m in found.moments}
        assert moments["detected"] == 0.0
        if x.state == "recovered":
            way = [
                moments[name] for name in ("diagnosed", "isolated", "state selected", "placed", "restored", "verified")
            ]
            assert None not in way and way == sorted(way)  # type: ignore[type-var]
            assert math.isclose(moments["first step"] or 0.0, x.down_s, abs_tol=1e-6)


def test_a_job_over_its_life(copied: tuple[Path, Truth]) -> None:
    path, truth = copied
    name = next(name for name, job in truth.jobs.items() if job.running_s is not None)
    review = msgspec.json.decode(told("job", name, "--journal", path, "--format", "json"), type=Review)
    (one,) = review.time.jobs
    assert one.job == name and review.since_s == truth.jobs[name].submitted_s
    assert one.faults == sum(
        x.job == name and x.kind == "fault" and x.state != "no_fault" and not x.drill for x in truth.incidents.values()
    )
