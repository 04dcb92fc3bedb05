"""Hundreds of seeds: no violation, recoveries that really recover, and every probe reached."""

from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from keepstep.sim.probes import missed
from keepstep.sim.run import Result, run, summary

SEEDS = {"mixed": 130, "storm": 50, "partition": 50, "program": 50, "silence": 30, "single": 30}
WORKERS = 2


def _one(task: tuple[str, int]) -> Result:
    return run(*task)


def _results() -> dict[str, list[Result]]:
    tasks = [(name, seed) for name, count in SEEDS.items() for seed in range(count)]
    found: dict[str, list[Result]] = {name: [] for name in SEEDS}
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        for result in pool.map(_one, tasks, chunksize=5):
            found[result.scenario].append(result)
    return found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hundreds_of_seeds() -> None:
    """One test, so that the seeds are run once however the tests are spread over processes."""
    results = _results()
    _nothing_is_violated(results)
    _most_incidents_recover(results)
    _silence_touches_no_job(results)
    _every_probe_was_reached(results)


def _nothing_is_violated(results: dict[str, list[Result]]) -> None:
    failed = [
        f"keepstep sim --scenario {name} --seed {r.seed} --trace: {r.failure.text}"
        for name, found in results.items()
        for r in found
        if r.failure is not None
    ]
    assert not failed, "\n".join(failed)


def _most_incidents_recover(results: dict[str, list[Result]]) -> None:
    mixed = summary(results["mixed"])
    assert mixed["incidents"] >= 300, "the default mix no longer exercises recoveries"
    assert mixed["recovered_share"] >= 0.8
    single = summary(results["single"])
    assert single["escalated"] == 0 and single["no_fault"] == 0 and single["recovered"] >= 40


def _silence_touches_no_job(results: dict[str, list[Result]]) -> None:
    """A start that silence has interrupted goes on; nothing that stepped is restarted."""
    assert sum(r.restarts for r in results["silence"]) == 0
    assert summary(results["silence"])["no_fault"] >= 50


def _every_probe_was_reached(results: dict[str, list[Result]]) -> None:
    hits: Counter[str] = Counter()
    for found in results.values():
        for result in found:
            hits.update(result.probes)
    assert missed(hits) == []
