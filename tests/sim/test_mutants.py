"""Every planted bug is caught, by a checker or an invariant, and nothing of it stays behind."""

import pytest

from keepstep.core import engine, isolate
from keepstep.sim.mutants import MUTANTS, Mutant, hunt, planted
from keepstep.sim.run import run


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 20
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_caught(mutant: Mutant) -> None:
    verdict = hunt(mutant)
    assert verdict.caught_by, f"{mutant.name!r} survived {mutant.seeds} seeds of scenario {mutant.scenario}"


def test_planting_leaves_nothing_behind() -> None:
    stages, breaker = dict(engine.STAGES), isolate.breaker
    before = run("single", 1).digest
    for mutant in MUTANTS:
        with planted(mutant):
            pass
    assert (dict(engine.STAGES), isolate.breaker) == (stages, breaker)
    assert run("single", 1).digest == before
