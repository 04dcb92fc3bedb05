"""Every planted bug is caught, by a checker or an invariant, and nothing of it stays behind."""

import pytest

from keepstep.core import engine, isolate
from keepstep.sim.mutants import MUTANTS, Mutant, hunt, planted
from keepstep.sim.run import run

CAUGHT = {
    "the session of a fact is ignored": 18,
    "only what nodes listed long ago": 5,
    "an incomplete state is complete": 28,
    "the first choice of a state is final": 28,
    "evidence during a recovery is forgotten": 2,
    "a person's hold is lifted by the engine": 13,
    "a stale end of a rank counts": 18,
    "the self-fence deadline passes too early": 11,
    "a late answer is proof of death": 11,
    "budgets are never charged": 18,
    "failures of a device are not counted": 16,
    "every incident is no fault": 11,
    "nobody is told that the job ended": 5,
    "a drill passes whoever was named": 11,
}
"""Seeds that are tried first: a hunt from the first one on takes far longer. One that is out of date costs time, no more."""


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    caught_by = _known(mutant) or hunt(mutant).caught_by
    assert caught_by, f"{mutant.name!r} survived {mutant.seeds} seeds of scenario {mutant.scenario}"


def _known(mutant: Mutant) -> str:
    """What catches it at the seed that is known to; empty where none is, or no longer does."""
    if mutant.name not in CAUGHT:
        return ""
    with planted(mutant):
        failure = run(mutant.scenario, CAUGHT[mutant.name]).failure
    return failure.name if failure is not None and failure.kind != "error" else ""


def test_only_mutants_are_known_to_be_caught() -> None:
    assert set(CAUGHT) <= {mutant.name for mutant in MUTANTS}


def test_planting_leaves_nothing_behind() -> None:
    stages, breaker = dict(engine.STAGES), isolate.breaker
    before = run("single", 1).digest
    for mutant in MUTANTS:
        with planted(mutant):
            pass
    assert (dict(engine.STAGES), isolate.breaker) == (stages, breaker)
    assert run("single", 1).digest == before
