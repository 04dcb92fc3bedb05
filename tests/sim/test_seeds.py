"""Many seeds: no violation, recoveries that really recover, and every probe reached."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from keepstep.sim.probes import missed
from keepstep.sim.run import Result, run, summary

SEEDS = {"mixed": 130, "storm": 50, "partition": 50, "program": 50, "silence": 30, "single": 30}
SLICE = {"mixed": 32, "storm": 12, "partition": 12, "program": 12, "silence": 10, "single": 10}
RARE = (("partition", 37), ("program", 14))
"""Reach what few others reach: run early, so that the slice needs no more seeds. Where they no longer do, it takes longer."""
WORKERS = 2

Task = tuple[str, int]
"""(scenario, seed)"""


def _tasks(seeds: dict[str, int]) -> list[Task]:
    return [(name, seed) for name, count in seeds.items() for seed in range(count)]


def _one(task: Task) -> Result:
    return run(*task)


def _sliced() -> Iterator[Result]:
    """The slice, and then as many more of all seeds as it takes until every probe was reached."""
    hits: Counter[str] = Counter()
    slice_ = list(dict.fromkeys((*RARE, *_tasks(SLICE))))
    more = sorted({*_tasks(SEEDS)} - {*slice_}, key=lambda task: task[1])
    for at, task in enumerate((*slice_, *more)):
        if at >= len(slice_) and not missed(hits):
            return
        result = run(*task)
        hits.update(result.probes)
        yield result


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_hundred_seeds() -> None:
    """One test, so that the seeds are run once however the tests are spread over processes."""
    _judge(list(_sliced()))


@pytest.mark.deep
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_hundreds_of_seeds() -> None:
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        _judge(list(pool.map(_one, _tasks(SEEDS), chunksize=5)))


def _judge(results: list[Result]) -> None:
    found: dict[str, list[Result]] = {name: [] for name in SEEDS}
    for result in results:
        found[result.scenario].append(result)
    _nothing_is_violated(results)
    _most_incidents_recover(found)
    _silence_touches_no_job(found["silence"])
    _every_probe_was_reached(results)


def _nothing_is_violated(results: list[Result]) -> None:
    failed = [
        f"keepstep sim --scenario {r.scenario} --seed {r.seed} --trace: {r.failure.text}"
        for r in results
        if r.failure is not None
    ]
    assert not failed, "\n".join(failed)


def _most_incidents_recover(found: dict[str, list[Result]]) -> None:
    mixed = summary(found["mixed"])
    assert mixed["incidents"] >= 2.3 * mixed["seeds"], "the default mix no longer exercises recoveries"
    assert mixed["recovered_share"] >= 0.8
    single = summary(found["single"])
    assert single["escalated"] == 0 and single["no_fault"] == 0 and single["recovered"] >= 1.3 * single["seeds"]


def _silence_touches_no_job(silence: list[Result]) -> None:
    """A start that silence has interrupted goes on; nothing that stepped is restarted."""
    assert sum(r.restarts for r in silence) == 0
    told = summary(silence)
    assert told["no_fault"] >= 1.6 * told["seeds"]


def _every_probe_was_reached(results: list[Result]) -> None:
    hits: Counter[str] = Counter()
    for result in results:
        hits.update(result.probes)
    assert missed(hits) == []
