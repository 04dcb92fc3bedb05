"""Whatever a document holds, the readers of a job's evidence neither raise nor run wild; metrics say what they show."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.core.combine import judge
from keepstep.core.observation import Observation
from keepstep.core.signal import Context
from keepstep.evidence.document import Document
from keepstep.evidence.job import READERS

_WORDS = st.sampled_from(
    [
        "[rank3]: ", "Traceback (most recent call last):", "\n", "  File \"x\", line 3 in y", "RuntimeError: ", "NCCL WARN ",
        "Watchdog caught collective operation timeout: WorkNCCL(", "SeqNum=9", "iteration 5/9 | lm loss: nan |", "Process 7:",
        "Thread 7 (idle): \"MainThread\"", "    f (a.py:3)", "{'loss': ", '{"entries": [', "rank      : 3 (local_rank: 3)",
        "exitcode  : -9 (pid: 3)", "Root Cause (first observed failure):", "slurmstepd: error: ", "CUDA error: ", "\x00", "é",
        "[#step] [END] {\"global_step\": 1e999}", "worker,time,batch_time\n", "1,2,3\n", "[1, 2] joined", " peer 1.2.3.4<5> ",
    ]
)  # fmt: skip


def all_of(document: Document) -> list[Observation]:
    found: list[Observation] = []
    for reader in READERS:
        assert 0 <= reader.recognise(document) <= 1
        found += reader.read(document).observations
    return found


@given(st.lists(_WORDS, max_size=30).map("".join) | st.binary(max_size=300).map(lambda raw: raw.decode("latin-1")))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read_and_judged(text: str) -> None:
    for raw in (text.encode(), b"\x80\x04" + text.encode(), b"[" + text.encode() + b"]"):
        judge(all_of(Document("x", raw)), Context())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["entries", "pg_config", "pg_status", "message", "threads", "frames", "pid", "step", "loss",
                             "ranks", "0", "extraInfo", "process_group", "collective_seq_id", "rank", "state"]),
            inner, max_size=5,
        ),
        max_leaves=15,
    )
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_any_json_is_read_and_judged(value: object) -> None:
    judge(all_of(Document("x", json.dumps(value).encode())), Context())


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=20), max_size=6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_any_attributes_are_judged(attributes: dict[str, str], pick: int) -> None:
    keys = ("job.collective_state", "job.stack", "job.collective_timeout", "job.collective_progress", "job.desync")
    told = {
        **attributes,
        "rank": str(pick),
        "group.0": "a|b|0-9:0|x|1|2|c|d|e|",
        "ranks": attributes.get("ranks", "1-,2"),
    }
    judge([Observation(signal=keys[pick % len(keys)], attributes=told)] * 2, Context())


@pytest.mark.parametrize(
    "junk", [b"a" * 3_000_000, b"(" * 500_000, b"\x80\x04" + b"]" * 100_000, b'{"a":' * 100_000, b"\xff\xfe" * 9000]
)
def test_large_and_broken_documents_are_read(junk: bytes) -> None:
    all_of(Document("x", junk))


def test_rows_of_metrics_show_a_slow_down_and_tables_a_straggler() -> None:
    rows = [{"step": at, "loss": 2.0, "step_time": 1.0 + at % 3 / 1000 + (at > 30) * 0.1} for at in range(60)]
    assert [x.signal for x in all_of(Document("x", json.dumps({"run": rows}).encode()))] == ["job.step_slower"]
    table = "rank,step,step_time\n" + "".join(
        f"{rank},{at},{1 + (rank == 2) * 0.2 + (at * 7 + rank) % 5 / 1000}\n" for at in range(20) for rank in range(8)
    )
    assert [(x.signal, x.part) for x in all_of(Document("x", table.encode()))] == [("job.straggler", "rank/2")]
