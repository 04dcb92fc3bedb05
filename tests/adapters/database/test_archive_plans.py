"""How SQLite goes about the searches of a long archive: by what it was asked for, and with no look into the table to count."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import event

from keepstep.adapters.database.opening import Database, open_database
from keepstep.review.records import IncidentRecord


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(tmp_path / "journal.db")
    made = [
        IncidentRecord(
            id=f"i{n}", job="j", tenant="t", kind="fault", state="recovered", cause="c", closed_s=float(n), nodes=("n1",)
        )
        for n in range(20)
    ]  # fmt: skip
    opened.archive.put(1, [(record, b"") for record in made])
    yield opened
    opened.close()


def plans(database: Database, where: dict[str, str], total: int = 20) -> list[list[str]]:
    """Of the statements of one search: that of the page and, where there is a next one, that of the count."""
    engine, asked = database.journal._connections.engine, []
    event.listen(engine, "before_cursor_execute", lambda *told: asked.append(told[2:4]))
    assert database.archive.list("incident", where, limit=5).total == total
    steps = []
    with engine.connect() as connection:
        for statement, values in list(asked):
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values).all()
            steps.append([row[3] for row in rows if not row[3].startswith("SEARCH reports USING INDEX")])
    return steps


def test_a_node_leads_to_what_was_there(database: Database) -> None:
    for where in ({"node": "n1"}, {"node": "n1", "kind": "fault"}, {"node": "n1", "job": "j", "tenant": "t", "q": "i"}):
        for first, *others in plans(database, where):
            assert first == "SEARCH finished_nodes USING PRIMARY KEY (what=? AND node=?)"
            assert len(others) == 1 and "id=?" in others[0] and "ended_s=?" in others[0]


def test_filters_are_judged_within_one_index(database: Database) -> None:
    where = {"job": "j", "tenant": "t", "state": "recovered", "kind": "fault"}
    for few in ({name: where[name]} for name in where), ({"kind": "fault", name: where[name]} for name in where):
        for asked in few:
            for steps in plans(database, asked):
                assert len(steps) == 1 and steps[0].startswith("SEARCH finished USING COVERING INDEX"), (asked, steps)


def test_an_id_leads_to_its_one_row(database: Database) -> None:
    for where in ({"id": "i7"}, {"id": "i7", "job": "j", "tenant": "t", "q": "i"}):
        [steps] = plans(database, where, total=1)
        assert len(steps) == 1 and steps[0].endswith("INDEX finished_id (what=? AND id=?)")


def test_words_are_looked_for_in_order(database: Database) -> None:
    for where in ({"q": "i"}, {"q": "i", "tenant": "t", "state": "recovered"}):
        assert plans(database, where) == [["SEARCH finished USING PRIMARY KEY (what=?)"]] * 2
