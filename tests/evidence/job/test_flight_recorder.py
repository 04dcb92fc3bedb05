"""Flight-recorder dumps: every version's form, which rank a dump is of, and the real dumps with their known culprits."""

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from keepstep.core.combine import judge
from keepstep.core.hangs import unpacked
from keepstep.core.signal import Context, Signal
from keepstep.evidence.document import Document
from keepstep.evidence.job.flight_recorder import READER

DATA = Path(__file__).parents[4] / "shared" / "data" / "nccl_flight_recorder"
CULPRITS = {
    "gpu_error_1st": {12: "not_entered", 14: "not_finished"},
    "lock_gil_1st": {9: "not_entered", 14: "not_entered"},
}
"""Where the faults were injected, and how it shows."""


def dump(rank: int, *, seq: int, done: int, world: int = 4, **more: Any) -> dict[str, Any]:
    entries = [_entry(n, "completed" if n <= done else "scheduled") for n in range(max(1, done - 1), seq + 1)]
    return {
        "version": "2.4",
        "pg_config": {
            "0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))},
            "7": {"name": "7", "desc": "own", "ranks": [rank]},
        },
        "pg_status": {
            "0": {"last_enqueued_collective": seq, "last_started_collective": -1, "last_completed_collective": done}
        },
        "entries": entries,
        **more,
    }


def _entry(seq: int, state: str) -> dict[str, Any]:
    return {
        "record_id": seq, "pg_id": 0, "process_group": ("0", "default_pg"), "collective_seq_id": seq, "p2p_seq_id": 0,
        "op_id": seq, "profiling_name": "nccl:all_reduce", "input_sizes": [[8, 8]], "state": state, "is_p2p": False,
        "retired": state == "completed",
    }  # fmt: skip


def read(value: Any, name: str = "d", *, form: str = "pickle") -> Any:
    data = pickle.dumps(value, 2) if form == "pickle" else json.dumps(value).encode()
    document = Document(name, data)
    assert READER.recognise(document) > 0.9
    return READER.read(document)


def judged(values: list[Any], form: str = "pickle") -> list[Signal]:
    seen = [x for at, value in enumerate(values) for x in read(value, f"d/x{at}", form=form).observations]
    return [signal for signal in judge(seen, Context()) if signal.key.startswith("job.hang")]


@pytest.mark.parametrize("case", CULPRITS)
def test_the_ranks_with_injected_faults_are_named(case: str) -> None:
    folder = DATA / case
    if not folder.is_dir():
        pytest.skip("no shared data")
    files = sorted(folder.glob("_dump_*"))
    # The names are hidden: what a dump is of must follow from its content.
    readings = [READER.read(Document("case/dump", file.read_bytes())) for file in files]
    ranks = [unpacked(r.observations[0].attributes).rank for r in readings]  # type: ignore[union-attr]
    assert ranks == [int(file.name.rpartition("_")[2]) for file in files]
    hangs = [s for s in judge([x for r in readings for x in r.observations], Context()) if s.key.startswith("job.hang")]
    assert {int(s.seen.attributes["rank"]): s.seen.attributes["how"] for s in hangs} == CULPRITS[case]
    assert not any(s.row.isolate for s in hangs)


@pytest.mark.parametrize("form", ["pickle", "json"])
def test_a_rank_that_did_not_enter_is_the_culprit(form: str) -> None:
    hangs = judged([dump(r, seq=9 if r != 2 else 7, done=8 if r != 2 else 7) for r in range(4)], form)
    assert [s.seen.part for s in hangs] == ["rank/2"]
    assert hangs[0].seen.attributes["seq"] == "9"


def test_dumps_where_nobody_waits_name_nobody() -> None:
    assert judged([dump(r, seq=9, done=9) for r in range(4)]) == []


def test_a_rank_that_left_no_dump_is_named_where_all_others_wait() -> None:
    hangs = judged([dump(r, seq=9, done=8) for r in range(4) if r != 1])
    assert [(s.seen.part, s.seen.attributes["how"]) for s in hangs] == [("rank/1", "no_dump")]


def test_where_most_dumps_are_missing_nobody_is_named() -> None:
    hangs = judged([dump(r, seq=9, done=8, world=64) for r in range(4)])
    assert [s.key for s in hangs] == ["job.hang.unlocated"]


def test_one_dump_of_two_names_nobody() -> None:
    """Somebody handed in one file: that there is no other says nothing about the other rank."""
    hangs = judged([dump(0, seq=9, done=8, world=2)])
    assert [s.key for s in hangs] == ["job.hang.unlocated"]


def test_sequence_numbers_of_two_groups_are_not_compared() -> None:
    """Trap 14: the same numbers mean nothing in another group, even under the same name."""
    one = [dump(r, seq=9, done=9, world=2) for r in range(2)]
    other = [dump(r, seq=900, done=900, world=2) for r in range(2, 4)]
    for value in other:
        value["pg_config"]["0"]["ranks"] = "[2, 3]"
    assert judged(one + other) == []


def test_without_groups_the_name_of_the_file_tells_the_rank() -> None:
    value = dump(3, seq=9, done=8)
    del value["pg_config"]["7"]
    assert read(value, "trace/nccl_trace_rank_3").observations[0].part == "rank/3"
    assert read(value, "trace/no-number").not_understood


def test_a_dump_that_would_run_code_is_reported_and_not_opened() -> None:
    """Trap 16: dumps are pickles."""
    reading = read({"entries": [print], "pg_config": {}})
    assert [x.signal for x in reading.observations] == ["job.dump_refused"]


def test_an_old_dump_with_plain_sequence_numbers_is_read() -> None:
    value = {
        "version": "1.1", "rank": 5,
        "entries": [{"pg_id": 0, "seq_id": 4, "profiling_name": "nccl:broadcast", "state": "started", "input_sizes": [[1]]}],
    }  # fmt: skip
    state = unpacked(read(value, form="json").observations[0].attributes)
    assert state is not None
    assert (state.rank, state.groups[0].waits_at, state.groups[0].op) == (5, 4, "nccl:broadcast")
