"""Jobs that share a store: their windows are spread, and stay put when others come and go."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.checkpoint.interval.windows import SLOTS, Job, Timeline, arrange, next_start_s


def job(name: str, interval_s: float = 900, write_s: float = 60, load: int = 100, priority: int = 0) -> Job:
    return Job(id=name, interval_s=interval_s, write_s=write_s, load_bytes_s=load, priority=priority)


def peak_at_run_time(timeline: Timeline, resolution_s: float) -> int:
    """Walk along the real time line of two cycles: the oracle."""
    greatest, now_s = 0, 0.0
    while now_s < 2 * timeline.cycle_s:
        writing = [
            w.load_bytes_s for w in timeline.windows if (now_s - w.phase_s) % w.interval_s < w.write_s - 1e-6
        ]  # fmt: skip
        greatest = max(greatest, sum(writing))
        now_s += resolution_s
    return greatest


def test_windows_that_fit_side_by_side_do_not_overlap() -> None:
    timeline = arrange([job(f"j{n:02}") for n in range(12)])
    assert timeline.peak_before_bytes_s == 1200
    assert timeline.peak_bytes_s == 100
    assert peak_at_run_time(timeline, 1.7) == 100


def test_a_mixed_crowd_stays_near_its_mean_load() -> None:
    draw = random.Random(5)
    jobs = [
        job(f"j{n:02}", draw.choice([300, 700, 900, 1800, 3600, 5000]), draw.uniform(10, 120), draw.randint(50, 400))
        for n in range(40)
    ]
    timeline = arrange(jobs, moves=10)
    assert timeline.peak_bytes_s < timeline.peak_before_bytes_s / 3
    assert timeline.peak_bytes_s < 2 * timeline.mean_bytes_s
    assert peak_at_run_time(timeline, 0.9) <= timeline.peak_bytes_s


JOBS = st.lists(
    st.builds(
        lambda interval_s, share, load, priority: job("", interval_s, interval_s * share, load, priority),
        st.floats(30, 20_000),
        st.floats(0.001, 1.0),
        st.integers(0, 1000),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


def named(jobs: list[Job]) -> list[Job]:
    return [job(f"j{n:02}", j.interval_s, j.write_s, j.load_bytes_s, j.priority) for n, j in enumerate(jobs)]


@settings(deadline=None)
@given(JOBS, st.integers(0, 3))
def test_the_peak_never_rises_and_intervals_stay_near(jobs: list[Job], moves: int) -> None:
    timeline = arrange(named(jobs), moves=moves)
    assert timeline.mean_bytes_s <= timeline.peak_bytes_s + 1e-6
    assert timeline.peak_bytes_s <= timeline.peak_before_bytes_s
    for wanted, window in zip(named(jobs), timeline.windows, strict=True):
        assert window.interval_s >= wanted.write_s
        if wanted.write_s < wanted.interval_s / 1.2:
            assert 1 / 1.15 < window.interval_s / wanted.interval_s < 1.15
        assert 0 <= window.phase_s < window.interval_s


@settings(deadline=None)
@given(JOBS)
def test_the_order_of_the_jobs_does_not_matter(jobs: list[Job]) -> None:
    assert arrange(named(jobs)) == arrange(named(jobs)[::-1])


@settings(deadline=None)
@given(JOBS, st.integers(0, 11))
def test_jobs_stay_where_they_are_when_others_come_and_go(jobs: list[Job], who: int) -> None:
    everyone = named(jobs)
    who %= len(everyone)
    before = arrange(everyone)
    fewer = arrange(everyone[:who] + everyone[who + 1 :], before)
    if fewer.cycle_s == before.cycle_s:
        phases = {window.id: window.phase_s for window in before.windows}
        assert all(window.phase_s == phases[window.id] for window in fewer.windows)
    joined = arrange([*everyone, job("new", everyone[0].interval_s, everyone[0].write_s)], before)
    assert joined.windows[:-1] == before.windows


def test_a_job_whose_write_time_changes_a_little_stays() -> None:
    before = arrange([job("a"), job("b")])
    after = arrange([job("a", write_s=70), job("b")], before)
    assert [w.phase_s for w in after.windows] == [w.phase_s for w in before.windows]
    assert after.windows[0].write_s == 70


def test_a_move_mends_what_a_leaving_job_left_behind() -> None:
    """Two wide windows share the time line, since two others were there first; then those leave."""
    wide = [job("w1", 800, 390, 100), job("w2", 800, 390, 100)]
    early = arrange([job("x", 800, 390, 500, priority=1), *wide])
    assert early.peak_bytes_s >= 200
    still = arrange(wide, early)
    mended = arrange(wide, early, moves=1)
    assert mended.peak_bytes_s == 100 <= still.peak_bytes_s


def test_the_important_choose_first() -> None:
    timeline = arrange([job("a"), job("z", priority=5)])
    assert {w.id: w.phase_s for w in timeline.windows}["z"] == 0.0


def test_a_job_that_saves_all_the_time_is_a_steady_load() -> None:
    timeline = arrange([job("steady", 5, 1, 30), job("big", 9000, 300, 100)])
    assert timeline.windows[1].interval_s == 5
    assert timeline.peak_bytes_s == 130
    assert timeline.mean_bytes_s > 30


def test_the_next_start_is_the_first_at_or_after_now() -> None:
    window = arrange([job("a"), job("b")]).windows[1]
    first_s = next_start_s(window, 1e9)
    assert 1e9 <= first_s < 1e9 + window.interval_s
    assert next_start_s(window, first_s) == pytest.approx(first_s)
    assert next_start_s(window, first_s + 1) == pytest.approx(first_s + window.interval_s)


def test_no_jobs_and_wrong_jobs() -> None:
    assert arrange([]).windows == ()
    with pytest.raises(ValueError, match="same id"):
        arrange([job("a"), job("a")])
    with pytest.raises(ValueError, match="job a writes for 90 s every 60 s"):
        arrange([job("a", 60, 90)])


def test_the_circle_divides_evenly() -> None:
    timeline = arrange([job(f"j{n}", 600 + 37 * n) for n in range(20)])
    for window in timeline.windows:
        times = timeline.cycle_s / window.interval_s
        assert times == pytest.approx(round(times))
        assert SLOTS % round(times) == 0
