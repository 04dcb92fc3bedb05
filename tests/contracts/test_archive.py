"""The contract of ports.Archive: in memory and in both real databases, and the same answers from each."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keepstep.adapters.database.opening import open_database
from keepstep.adapters.memory.archive import MemoryArchive
from keepstep.ports import Archive
from keepstep.review.records import FaultRecord, IncidentRecord, JobRecord

Make = Callable[[], Archive]
Record = IncidentRecord | JobRecord | FaultRecord


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Make]:
    """Opens the same archive each time it is called."""
    if request.param == "memory":
        archive = MemoryArchive()
        yield lambda: archive
        return
    where = request.getfixturevalue("postgres_url") if request.param == "postgresql" else tmp_path / "journal.db"
    opened = []

    def open_it() -> Archive:
        opened.append(open_database(where, patience_s=60.0))
        return opened[-1].archive

    yield open_it
    for database in opened:
        database.close()


def incident(id: str, closed_s: float, **fields: object) -> IncidentRecord:
    known: dict[str, object] = {"job": "j1", "tenant": "a", "kind": "fault", "state": "recovered", "cause": "host"}
    return IncidentRecord(id=id, closed_s=closed_s, **known | fields)  # type: ignore[arg-type]


def job(id: str, finished_s: float | None, **fields: object) -> JobRecord:
    return JobRecord(id=id, finished_s=finished_s, **{"tenant": "a", "state": "succeeded"} | fields)  # type: ignore[arg-type]


def fault(id: str, closed_s: float, **fields: object) -> FaultRecord:
    known = {"resource": "device/n1/3", "node": "n1", "part": "gpu3", "cause": "hardware", "failure_class": "ecc"}
    known |= {"scope": "device", "verdict": "faulty", "outcome": "repaired"}
    return FaultRecord(id=id, opened_s=0.0, closed_s=closed_s, **known | fields)  # type: ignore[arg-type]


def put(archive: Archive, *records: Record, seq: int = 1) -> None:
    archive.put(seq, [(record, f"report of {record.id}".encode()) for record in records])


def ids(archive: Archive, kind: str, where: dict[str, str] | None = None, **limits: object) -> list[str]:
    return [record.id for record in archive.list(kind, where or {}, **limits).records]  # type: ignore[arg-type]


def test_what_was_put_is_found_by_its_id(make: Make) -> None:
    archive = make()
    put(archive, incident("x", 5.0), job("x", 6.0), fault("x", 7.0))
    archive.put(2, [(incident("y", 8.0), b"\x00\xff")])
    for again in (archive, make()):
        assert again.get("incident", "x") == b"report of x"
        assert again.get("incident", "y") == b"\x00\xff"
        assert again.get("job", "y") is None
        assert again.list("incident").records == (incident("y", 8.0), incident("x", 5.0))
        assert again.list("job").records == (job("x", 6.0),)
        assert again.list("fault").records == (fault("x", 7.0),)


def test_it_knows_how_far_it_is_complete(make: Make) -> None:
    archive = make()
    assert archive.complete_to() == 0
    archive.put(7, [])
    put(archive, job("x", 1.0), seq=5)
    assert archive.complete_to() == 7
    archive.put(9, [])
    assert make().complete_to() == 9


def test_the_same_one_again_replaces_it(make: Make) -> None:
    archive = make()
    put(archive, incident("x", 5.0, nodes=("n1", "n2")), incident("y", 6.0))
    put(archive, incident("x", 9.0, state="escalated", nodes=("n2", "n3")))
    assert ids(archive, "incident") == ["x", "y"]
    assert ids(archive, "incident", {"state": "recovered"}) == ["y"]
    assert ids(archive, "incident", {"node": "n1"}) == []
    assert ids(archive, "incident", {"node": "n3"}) == ["x"]
    archive.put(2, [(job("z", 1.0), b"old"), (job("z", 2.0), b"new")])
    assert archive.get("job", "z") == b"new"


def test_filters(make: Make) -> None:
    archive = make()
    put(
        archive,
        incident("i1", 1.0, summary="ECC error on GPU 3", resources=("device/n1/3",), nodes=("n1",)),
        incident("i2", 2.0, tenant="b", cause="network", kind="start", nodes=("n1", "n2")),
        incident("i3", 3.0, tenant="c", job="j2", state="escalated", summary="100% of_it 'lost' \\ über [ab]*?"),
        job("j1", 4.0),
        job("j2", None, tenant="b", state="failed"),
        fault("f1", 5.0),
        fault("f2", 6.0, node="", resource="rack/r1", cause="facility"),
    )

    def found(what: str, **where: str) -> list[str]:
        return ids(archive, what, where)

    assert found("incident", job="j1") == ["i2", "i1"]
    assert found("incident", tenant="a") == ["i1"]
    assert found("incident", tenant="a,c,zz") == ["i3", "i1"]
    assert found("incident", state="escalated") == ["i3"]
    assert found("incident", cause="network", kind="start") == ["i2"]
    assert found("incident", cause="network", kind="fault") == []
    assert found("incident", node="n1") == ["i2", "i1"]
    assert found("incident", q="ecc ERROR") == ["i1"]
    assert found("incident", q="device/n1") == ["i1"]
    assert found("incident", q="j2") == ["i3"]
    assert found("incident", q="ÜBER") == ["i3"]
    for literal in ("100%", "0% of_it 'lost' \\", "of_it", "[ab]*?", "b]*"):
        assert found("incident", q=literal) == ["i3"]
    assert found("incident", q="of%it") == [] == found("incident", q="of1it")
    assert found("incident", q="of*it") == [] == found("incident", q="[lmn]ost") == found("incident", q="j2" * 5000)
    assert found("incident", q="j1", tenant="a,b", state="recovered") == ["i2", "i1"]
    assert found("incident", node="n1", tenant="b", q="i2") == ["i2"]
    assert found("incident", q="") == ["i3", "i2", "i1"]
    assert found("job", job="j1") == ["j1"]
    assert found("job", state="failed", tenant="b") == ["j2"]
    assert found("job", cause="host") == [] == found("job", node="n1")
    assert found("fault", node="n1") == ["f1"]
    assert found("fault", cause="facility") == ["f2"]
    assert found("fault", q="rack/R1") == ["f2"]
    assert found("fault", tenant="a") == [] == found("fault", job="j1")
    page = archive.list("incident", {"node": "n1"}, limit=1)
    assert ([record.id for record in page.records], page.total) == (["i2"], 2)


def test_a_filter_or_cursor_that_there_is_not(make: Make) -> None:
    with pytest.raises(ValueError, match="no filter 'colour'; there are id, job, tenant"):
        make().list("incident", {"colour": "red"})
    for wrong in ("nonsense", "[]", "{}", '["x", "y"]'):
        with pytest.raises(ValueError, match="is no cursor"):
            make().list("incident", cursor=wrong)


def test_a_span_of_time(make: Make) -> None:
    archive = make()
    put(archive, *(incident(f"i{n}", float(n)) for n in range(1, 6)))
    assert ids(archive, "incident", since_s=2.0, until_s=4.0) == ["i3", "i2"]
    assert archive.list("incident", since_s=2.0, until_s=4.0).total == 2
    assert [record.id for record in archive.records("incident", 2.0, 4.0)] == ["i2", "i3"]
    assert [record.id for record in archive.records("incident")] == ["i1", "i2", "i3", "i4", "i5"]
    assert list(archive.records("job")) == []


def test_all_records_of_a_long_archive(make: Make) -> None:
    archive = make()
    put(archive, *(job(f"j{n:04}", float(n // 7)) for n in range(1203)))
    assert [record.id for record in archive.records("job")] == [f"j{n:04}" for n in range(1203)]


def test_pages_cover_everything_once_while_more_is_put(make: Make) -> None:
    """Many end at the same moment; what is put meanwhile is newer and belongs to no later page."""
    archive = make()
    put(archive, *(incident(f"i{n:03}", float(n // 10), tenant="ab"[n % 2]) for n in range(100)))
    seen: list[str] = []
    cursor, totals = "", []
    for turn in range(40):
        page = archive.list("incident", {"tenant": "a"}, cursor=cursor, limit=7)
        seen += [record.id for record in page.records]
        totals.append(page.total)
        put(archive, incident(f"new{turn}", 100.0 + turn))
        cursor = page.next
        if not cursor:
            break
    assert seen == sorted((f"i{n:03}" for n in range(0, 100, 2)), reverse=True)
    assert totals == list(range(50, 58))


def test_no_name_is_too_strange(make: Make) -> None:
    archive = make()
    names = ["a\0b", "ä" * 5000, "x" * 200, "%_\\'\"", "\U0001f525", ""]
    for number, name in enumerate(names):
        put(archive, incident(name, float(number), job=name, nodes=(name, name), summary=name))
        assert archive.get("incident", name) == f"report of {name}".encode()
        assert archive.list("incident", {"node": name}).records[0].id == name
        assert name in ids(archive, "incident", {"job": name})
    assert ids(archive, "incident", {"q": "A\0B"}) == ["a\0b"]
    assert ids(archive, "incident") == names[::-1]


def test_the_databases_answer_as_memory_does(make: Make) -> None:
    rng = random.Random(5)
    archive, model = make(), MemoryArchive()
    for _ in range(4):
        batch: list[tuple[Record, bytes]] = []
        for _ in range(60):
            fields = {"tenant": rng.choice("ab"), "state": rng.choice("xy"), "job": rng.choice("JKL")}
            nodes = tuple(rng.sample(["n1", "n2", "N1", "Z", "a", "é"], rng.randrange(3)))
            made = incident(rng.choice("aBcZéñ_") + str(rng.randrange(80)), rng.randrange(9) / 3, nodes=nodes, **fields)
            batch.append((made, rng.randbytes(5)))
        archive.put(1, batch)
        model.put(1, batch)
    for _ in range(60):
        where = {
            name: rng.choice(values)
            for name, values in {
                "tenant": ["a", "b", "a,b"], "state": ["x", "z"], "job": ["J"], "node": ["n1", "é"], "q": ["b", "Z1", "é"],
                "id": ["B7", "Z1", "é20"],
            }.items()
            if rng.random() < 0.3
        }  # fmt: skip
        span = {"since_s": rng.choice([0.0, 1.0]), "until_s": rng.choice([None, 2.0]), "limit": rng.choice([3, 1000])}
        cursor = ""
        for _ in range(3):
            page = archive.list("incident", where, cursor=cursor, **span)  # type: ignore[arg-type]
            assert page == model.list("incident", where, cursor=cursor, **span)  # type: ignore[arg-type]
            cursor = page.next
    assert list(archive.records("incident", 1.0, 2.0)) == list(model.records("incident", 1.0, 2.0))
