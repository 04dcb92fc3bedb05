"""The age of the newest verified checkpoint: told once when it becomes late, and once when it is in time again."""

from collections.abc import Callable

from keepstep.checkpoint.snapshot.age_watch import KEPT, AgeWatch


class Job:
    """Saves every 100 steps, of a second each; a save takes 10 s."""

    def __init__(self, target_s: float = 0.0) -> None:
        self.now_s, self.step = 1000.0, 0
        self.watch = AgeWatch(target_s, lambda: self.now_s)
        self.told: list[str] = []

    def run(self, steps: int, save: Callable[[int], None] = lambda _: None) -> None:
        for _ in range(steps):
            self.now_s += 1
            self.step += 1
            self.watch.moved(self.step)
            if self.step % 100 == 0:
                save(self.step)
            if (words := self.watch.look()) is not None:
                self.told.append(words)

    def good(self, step: int) -> None:
        self.watch.begun(step, self.now_s)
        self.now_s += 10
        self.watch.begun(step, self.now_s)
        self.watch.verified(step)

    def bad(self, step: int) -> None:
        self.watch.begun(step, self.now_s)
        self.watch.failed(step, "no space is left")


def test_nothing_is_said_while_saves_come_and_are_verified() -> None:
    job = Job()
    job.run(2001, job.good)
    age = job.watch.age()
    assert job.told == [] and age is not None
    assert age.target_s == 120 and age.age_s == 11, "110 s from save to save, and 10 s until one is verified"


def test_failing_saves_are_told_twice_and_the_next_good_one_once() -> None:
    job = Job()
    job.run(500, job.good)
    job.run(600, job.bad)
    assert len(job.told) == 2
    assert "is late: step 500 is the newest verified" in job.told[0]
    assert "far too late" in job.told[1] and "no space is left" in job.told[1]
    job.run(100, job.good)
    assert len(job.told) == 3 and "in time again" in job.told[2]


def test_saves_that_stop_are_told() -> None:
    job = Job()
    job.run(500, job.good)
    job.run(400)
    assert len(job.told) == 2 and "no save was tried since" in job.told[1]


def test_a_save_that_is_only_committed_is_none() -> None:
    job = Job()
    job.run(500, job.good)

    def unread(step: int) -> None:
        job.watch.begun(step, job.now_s)
        job.watch.committed(step)

    job.run(400, unread)
    assert len(job.told) == 2 and "not verified yet" in job.told[1]


def test_a_job_that_stands_still_loses_nothing() -> None:
    job = Job()
    job.run(500, job.good)
    job.now_s += 10_000
    assert job.watch.look() is None


def test_nothing_is_said_before_it_is_known_how_often_the_job_saves() -> None:
    job = Job()
    job.run(5000)
    job.run(300, job.good)
    job.run(5000)
    assert job.told == [] and job.watch.age() is None


def test_a_target_that_is_given_counts_from_the_start() -> None:
    job = Job(target_s=50.0)
    job.run(200)
    assert [words.split(":")[0].rsplit(" is ", 1)[1] for words in job.told] == ["late", "far too late"]


def test_after_a_restart_the_age_counts_from_there() -> None:
    job = Job()
    job.run(550, job.good)
    job.now_s += 5000
    job.step = 500
    job.watch.resumed()
    job.run(99)
    assert job.told == []
    job.run(301, job.good)
    assert job.told == []


def test_a_save_that_ends_after_a_restart_counts() -> None:
    job = Job(target_s=50.0)
    job.watch.begun(100, job.now_s)
    job.watch.resumed()
    job.watch.verified(100)
    job.watch.failed(100, "told late")
    age = job.watch.age()
    assert age is not None and age.step == 100


def test_what_is_remembered_is_bounded() -> None:
    job = Job()
    job.run(300, job.good)
    job.run(100 * 3 * KEPT, job.bad)
    assert len(job.watch._attempts) <= KEPT + 1
    age = job.watch.age()
    assert age is not None and age.step == 300
