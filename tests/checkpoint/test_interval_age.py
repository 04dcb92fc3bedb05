"""The age of the newest verified checkpoint: what counts, what does not, and what is said."""

from keepstep.checkpoint.interval.age import ALARM_TIMES, LATE_TIMES, Age, Attempt, judge, target_age_s

TARGET_S = 600.0


def attempt(step: int, taken_s: float, outcome: str = "verified", reason: str = "") -> Attempt:
    return Attempt(step=step, taken_s=taken_s, outcome=outcome, reason=reason)  # type: ignore[arg-type]


def at(now_s: float, *attempts: Attempt, step: int = 10_000) -> Age:
    return judge(attempts, TARGET_S, now_s, started_s=0.0, step=step)


def test_the_target_is_an_interval_and_the_time_to_verify() -> None:
    assert target_age_s(600, 90) == 690


def test_levels_follow_the_age_of_the_newest_verified() -> None:
    saved = attempt(100, 1000.0)
    assert at(1000 + TARGET_S, saved).level == "ok"
    assert at(1000 + TARGET_S * LATE_TIMES + 1, saved).level == "late"
    assert at(1000 + TARGET_S * ALARM_TIMES + 1, saved).level == "alarm"
    assert at(1000 + TARGET_S, saved).age_s == TARGET_S


def test_a_failed_save_counts_as_none_and_its_reason_is_told() -> None:
    verdict = at(
        3000,
        attempt(100, 1000.0),
        attempt(200, 1600.0, "failed", "disk full"),
        attempt(300, 2200.0, "failed", "disk full"),
    )
    assert verdict.level == "alarm"
    assert verdict.step == 100
    assert "2 saves, the last of step 300: failed (disk full)" in verdict.reasons


def test_a_committed_save_that_was_not_read_back_does_not_count() -> None:
    verdict = at(2200, attempt(100, 1000.0), attempt(200, 2100.0, "committed"), attempt(300, 2190.0, "running"))
    assert (verdict.level, verdict.age_s) == ("late", 1200.0)
    assert "step 200: not verified yet" in verdict.reasons
    assert "step 300: still being written" in verdict.reasons


def test_a_corrupt_one_throws_the_age_back_to_the_one_before() -> None:
    verdict = at(1700, attempt(100, 200.0), attempt(200, 1600.0, "corrupt", "pack 3 differs"))
    assert verdict.step == 100
    assert verdict.age_s == 1500
    assert "step 200: did not verify (pack 3 differs)" in verdict.reasons


def test_before_the_first_the_age_counts_from_the_start() -> None:
    verdict = at(2000)
    assert (verdict.level, verdict.age_s, verdict.step) == ("alarm", 2000.0, None)
    assert verdict.reasons[-1].startswith("no save was tried since")


def test_a_job_that_stands_at_its_verified_step_has_nothing_to_lose() -> None:
    assert at(1e6, attempt(100, 1000.0), step=100).level == "ok"
    assert at(1e6, attempt(100, 1000.0), step=101).level == "alarm"


def test_older_failures_are_not_told() -> None:
    verdict = at(1100, attempt(50, 500.0, "failed", "timeout"), attempt(100, 1000.0))
    assert verdict.level == "ok"
    assert len(verdict.reasons) == 1


def test_the_newest_is_the_one_of_the_highest_step() -> None:
    """After a rollback the steps are made again: the later save of an equal step counts."""
    verdict = at(5000, attempt(100, 4800.0), attempt(100, 1000.0), attempt(90, 4900.0))
    assert (verdict.step, verdict.age_s) == (100, 200.0)


def test_a_clock_that_went_back_gives_no_negative_age() -> None:
    assert at(900, attempt(100, 1000.0)).age_s == 0.0
