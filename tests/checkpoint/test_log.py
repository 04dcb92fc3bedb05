"""The commit log: what is believed, who may write, and that a log which was cut says the same as before."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.checkpoint.errors import SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.format.records import LogRecord, seal
from keepstep.checkpoint.repository.compaction import compact, plan_horizon
from keepstep.checkpoint.repository.history import History, read
from keepstep.checkpoint.repository.log import CommitLog, key_of, name_of
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.retention import Policy, retain

from .shared_disk import JOB, Disk, View, commit_one, forbid_removal_of_live, token_of


def draft(kind: Any = "pin", **fields: Any) -> LogRecord:
    fields = {"job": JOB, "generation": 0} | fields
    return LogRecord(seq=0, kind=kind, previous="", writer="", at_unix_s=0.0, **fields)


def never(_: LogRecord) -> bool:
    return False


def filled(disk: Disk, count: int) -> CommitLog:
    """A log of ``open`` records."""
    log = CommitLog(View(disk))
    for generation in range(count):
        log.append(draft("open", generation=generation), never)
    return log


def fresh(disk: Disk) -> CommitLog:
    log = CommitLog(View(disk))
    log.refresh()
    return log


def test_records_are_numbered_and_chained(disk: Disk) -> None:
    filled(disk, 4)
    log = fresh(disk)
    records = log.records(JOB)
    assert [record.seq for record in records] == [1, 2, 3, 4] and not log.damaged()
    assert records[0].previous == "" and [log.digest(seq) for seq in (1, 2, 3)] == [r.previous for r in records[1:]]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.mark.parametrize("gone", [1, 2, 3])
def test_a_missing_record_is_noticed_unless_it_was_the_last(disk: Disk, gone: int) -> None:
    filled(disk, 4)
    del disk.objects[name_of(gone)]
    assert list(fresh(disk).damaged()) == [gone]


@pytest.mark.parametrize("seq", [1, 2, 3])
def test_a_record_that_was_exchanged_is_noticed(disk: Disk, seq: int) -> None:
    filled(disk, 4)
    other = Disk()
    filled(other, 4)
    disk.objects[name_of(seq)] = other.objects[name_of(seq)]
    assert "exchanged" in fresh(disk).damaged()[seq]


def test_a_record_under_another_number_is_not_believed(disk: Disk) -> None:
    filled(disk, 2)
    disk.objects[name_of(3)] = disk.objects[name_of(1)]
    assert "says that it is record 1" in fresh(disk).damaged()[3]


def test_an_answer_that_was_lost_makes_one_record(disk: Disk) -> None:
    lost = []

    def hook(when: str, call: str, key: str) -> None:
        if (when, call) == ("after", "create") and not lost:
            lost.append(key)
            raise TimeoutError("no answer")

    log = CommitLog(View(disk, hook))
    record, own = log.append(draft("open"), never)
    assert (record.seq, own) == (1, True) and len(disk.objects) == 1 and lost


def test_a_write_that_failed_leaves_nothing_and_says_so(disk: Disk) -> None:
    def hook(when: str, call: str, key: str) -> None:
        if (when, call) == ("before", "create"):
            raise OSError(28, "full")

    with pytest.raises(OSError, match="full"):
        CommitLog(View(disk, hook)).append(draft("open"), never)
    assert not disk.objects


def test_a_record_that_cannot_be_read_stops_the_writer(disk: Disk) -> None:
    filled(disk, 3)

    def hook(when: str, call: str, key: str) -> None:
        if call == "read" and key == name_of(2):
            raise OSError(5, "Input/output error")

    log = CommitLog(View(disk, hook))
    with pytest.raises(OSError, match="nothing is known for sure"):
        log.append(draft("open", generation=9), never)
    assert len(disk.objects) == 3


def test_a_reading_that_was_wrong_once_is_not_believed(disk: Disk) -> None:
    filled(disk, 3)
    good, turns = disk.objects[name_of(3)], iter(range(100))

    def hook(when: str, call: str, key: str) -> None:
        if (when, call, key) == ("before", "read", name_of(3)):
            disk.objects[key] = good
            if next(turns) == 0:
                disk.flip(key, 500)

    log = CommitLog(View(disk, hook))
    log.append(draft("open", generation=9), never)
    assert not log.damaged() and not fresh(disk).damaged()


def test_the_newest_generation_shuts_out_older_ones_even_by_a_void_record(disk: Disk) -> None:
    log = filled(disk, 2)
    log.append(draft("adopt", generation=7), never)
    with pytest.raises(Superseded, match="generation 7"):
        fresh(disk).append(draft("open", generation=3), never)


def test_what_would_not_count_is_not_written(disk: Disk) -> None:
    log = filled(disk, 1)
    with pytest.raises(StateInvalid, match="no checkpoint"):
        log.append(draft("pin", of=1), never)
    log.append(draft("expire", folder="late"), never)
    with pytest.raises(SaveFailed, match="given up"):
        log.append(draft("commit", folder="late"), never)
    assert len(disk.objects) == 2


# ---- cutting the log


def saved(disk: Disk, count: int, keep: int = 2) -> Repository:
    repository = Repository(View(disk), JOB)
    for step in range(count):
        commit_one(repository, step)
        retain(repository, Policy(keep=keep))
    return repository


def view_of(history: History) -> Any:
    """What a history means to anyone."""
    return (history.generation, history.live)


def test_a_log_that_was_cut_says_the_same(disk: Disk) -> None:
    forbid_removal_of_live(disk)
    repository = saved(disk, 8)
    repository.pin(repository.commits()[-1].key, "paper")
    repository.note_failed_restore(repository.commits()[0].key, "try-1", "NaN")
    before = view_of(repository.history())
    records = len([key for key in disk.objects if key.startswith("commits/")])
    assert compact(repository, older_than_unix_s=time.time() + 1, at_least=1000) == 0
    assert compact(repository, older_than_unix_s=0.0, at_least=1) == 0
    assert compact(repository, older_than_unix_s=time.time() + 1, at_least=5) > 10
    left = [key for key in disk.objects if key.startswith("commits/")]
    assert len(left) < records - 10
    for again in (repository, Repository(View(disk), JOB)):
        again.log.refresh()
        assert view_of(again.history()) == before and not again.log.damaged()
        assert [token_of(again.load(commit.key, 0)) for commit in again.commits()] == [7, 6]
    commit_one(repository, 8)
    assert repository.log.tail() > records, "numbers are used again"


def test_a_log_is_cut_again_and_again(disk: Disk) -> None:
    repository = Repository(View(disk), JOB)
    policy = Policy(keep=2, log_records=10, log_age_s=0.0)
    for step in range(30):
        commit_one(repository, step)
        retain(repository, policy, lambda: time.time() + 1)
        assert len([key for key in disk.objects if key.startswith("commits/")]) < 30
    reader = Repository(View(disk), JOB)
    assert [commit.step for commit in reader.commits()] == [29, 28] and not reader.log.damaged()
    assert sum(record.kind == "horizon" for record in reader.log.records(JOB)) == 1


def test_what_the_horizon_kept_cannot_be_exchanged_or_lost(disk: Disk) -> None:
    repository = saved(disk, 6)
    compact(repository, older_than_unix_s=time.time() + 1, at_least=1)
    kept = repository.commits()[-1].seq
    whole = dict(disk.objects)
    other = LogRecord(**{**_fields(repository.log.record(kept)), "step": 77})
    disk.objects[name_of(kept)] = seal(other)
    assert "exchanged" in fresh(disk).damaged()[kept]
    disk.objects = whole
    del disk.objects[name_of(kept)]
    assert "missing" in fresh(disk).damaged()[kept]


def test_a_kept_record_whose_neighbours_are_gone_cannot_be_exchanged(disk: Disk) -> None:
    repository = saved(disk, 2)
    oldest = repository.commits()[-1]
    repository.pin(oldest.key, "paper")
    for step in range(2, 6):
        commit_one(repository, step)
    retain(repository, Policy(keep=2))
    compact(repository, older_than_unix_s=time.time() + 1, at_least=1)
    seq = oldest.seq + 1
    assert name_of(seq) in disk.objects and name_of(seq + 1) not in disk.objects
    other = LogRecord(**{**_fields(repository.log.record(seq)), "state": "corrupt"})
    disk.objects[name_of(seq)] = seal(other)
    assert "horizon" in fresh(disk).damaged()[seq]


def test_a_cut_stops_before_what_has_expired_and_is_still_there(disk: Disk) -> None:
    repository = Repository(View(disk), JOB)
    for step in range(6):
        commit_one(repository, step)
    retain(repository, Policy(keep=2, delay_s=1e6))
    assert len(repository.history().expired) == 4
    compact(repository, older_than_unix_s=time.time() + 1, at_least=1)
    again = Repository(View(disk), JOB)
    assert [commit.step for commit in again.commits()] == [5, 4] and len(again.history().expired) == 4


def _fields(record: LogRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_a_record_that_was_let_go_does_not_come_back(disk: Disk) -> None:
    repository = saved(disk, 6)
    whole = dict(disk.objects)
    compact(repository, older_than_unix_s=time.time() + 1, at_least=1)
    gone = {key: data for key, data in whole.items() if key not in disk.objects}
    assert gone
    disk.objects |= gone
    again = Repository(View(disk), JOB)
    assert [commit.step for commit in again.commits()] == [5, 4] and not again.log.damaged()
    assert compact(again, older_than_unix_s=0.0, at_least=1) == len(gone), "an interrupted cut is finished"


def test_a_cut_in_the_middle_of_a_look_is_no_error(disk: Disk) -> None:
    repository = saved(disk, 6)
    done: list[int] = []

    def hook(when: str, call: str, key: str) -> None:
        if call == "read" and not done:
            done.append(compact(repository, older_than_unix_s=time.time() + 1, at_least=1))

    reader = Repository(View(disk, hook), JOB)
    assert [commit.step for commit in reader.commits()] == [5, 4] and done[0] > 0


_KINDS = st.sampled_from(["commit", "commit", "verified", "verified", "suspect", "pin", "unpin", "expire", "failed",
                          "progress", "open", "give up"])  # fmt: skip


@given(st.lists(st.tuples(_KINDS, st.integers(0, 200), st.sampled_from(["a", "b"])), max_size=60), st.integers(0, 60))
@settings(max_examples=300, deadline=None)
def test_every_cut_of_every_log_says_the_same_to_every_job(moves: list[tuple[str, int, str]], until: int) -> None:
    records: list[LogRecord] = []
    generations = {"a": 0, "b": 0}
    for kind, pick, job in moves:
        commits = [record.seq for record in records if record.kind == "commit" and record.job == job]
        generations[job] += kind == "open"
        made = _drawn(kind, pick, commits, len(records) + 1, {"job": job, "generation": generations[job]})
        if made is not None and not read(r for r in records if r.job == job).objection(made):
            records.append(made)
    histories = {job: read(record for record in records if record.job == job) for job in generations}
    last, stay = plan_horizon(records, histories, {"f3", "g2"}, float(until))
    left = [record for record in records if record.seq > last or record.seq in stay]
    for job, history in histories.items():
        after = read(record for record in left if record.job == job)
        assert view_of(after) == view_of(history)
        assert not [folder for folder in ("f3", "g2") if (folder in history.given_up) != (folder in after.given_up)]
        assert not {seq for seq, gone in history.expired.items() if gone.folder == "f3"} - set(after.expired)


def _drawn(kind: str, pick: int, commits: list[int], seq: int, of_job: dict[str, Any]) -> LogRecord | None:
    about = commits[pick % len(commits)] if commits else 0
    fields: dict[str, Any] = {"writer": str(seq), "previous": "", "at_unix_s": float(seq)} | of_job
    match kind:
        case "commit":
            return LogRecord(seq=seq, kind="commit", folder=f"f{seq}", step=seq, **fields)
        case "open":
            return LogRecord(seq=seq, kind="open", **fields)
        case "give up":
            return LogRecord(seq=seq, kind="expire", folder=f"g{pick % 5}", **fields)
        case _ if not about:
            return None
        case "verified" | "suspect":
            return LogRecord(seq=seq, kind="state", of=about, state=kind, **fields)  # type: ignore[arg-type]
        case "expire":
            return LogRecord(seq=seq, kind="expire", of=about, min_valid=1, **fields)
        case _:
            return LogRecord(seq=seq, kind=kind, of=about, attempt=str(pick % 3), **fields)  # type: ignore[arg-type]


def test_adopted_checkpoints_are_never_cut(disk: Disk) -> None:
    log = CommitLog(View(disk))
    log.append(draft("adopt", adopted={"path": "x"}), never)
    repository = saved(disk, 6)
    compact(repository, older_than_unix_s=time.time() + 1, at_least=1)
    assert [record.adopted for record in fresh(disk).records(JOB) if record.kind == "adopt"] == [{"path": "x"}]


def test_keys_of_records_are_twenty_digits() -> None:
    assert key_of(12) == "00000000000000000012" and name_of(12) == "commits/00000000000000000012.json"
