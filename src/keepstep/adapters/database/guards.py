"""Triggers that no accident gets past: the journal only grows, terms and marks only grow, a needed snapshot stays.

Entries can be deleted up to the mark ``compacted`` and nowhere else; that mark can be set only where a snapshot covers it, and
neither it nor that snapshot can be taken back. So it takes two deliberate acts, in order, to lose an entry, and its state
is kept then. Owns these statements, for both kinds of database.
"""

from collections.abc import Iterator

_COMPACTED = "coalesce((SELECT seq FROM marks WHERE name = 'compacted'), 0)"
_UNCOVERED = "NEW.name = 'compacted' AND NOT EXISTS (SELECT 1 FROM snapshots WHERE seq >= NEW.seq)"

CONDITIONS: tuple[tuple[str, str, str, str, str], ...] = (
    ("entries_keep", "entries", "DELETE", f"OLD.seq > {_COMPACTED}", "the journal only grows"),
    ("entries_fix", "entries", "UPDATE", "true", "the journal only grows"),
    ("marks_keep", "marks", "DELETE", "true", "a mark only grows"),
    ("marks_grow", "marks", "UPDATE", "NEW.seq < OLD.seq OR NEW.name <> OLD.name", "a mark only grows"),
    ("marks_cover", "marks", "INSERT", _UNCOVERED, "no snapshot covers what is to be compacted"),
    ("marks_cover_more", "marks", "UPDATE", _UNCOVERED, "no snapshot covers what is to be compacted"),
    (
        "snapshots_keep",
        "snapshots",
        "DELETE",
        f"{_COMPACTED} > 0 AND NOT EXISTS (SELECT 1 FROM snapshots WHERE seq >= {_COMPACTED} AND seq <> OLD.seq)",
        "entries were compacted that only this snapshot covers",
    ),
    ("leadership_keep", "leadership", "DELETE", "true", "terms only grow"),
    ("leadership_grow", "leadership", "UPDATE", "NEW.term < OLD.term", "terms only grow"),
)
"""Name, table, what is done to a row of it, when that is refused, why."""

EMPTYING = ("entries", "marks", "snapshots", "leadership")
"""Tables that PostgreSQL must not TRUNCATE, which fires no trigger of rows."""


def statements(dialect: str) -> Iterator[str]:
    return _postgresql() if dialect == "postgresql" else _sqlite()


def _sqlite() -> Iterator[str]:
    for name, table, deed, refused, why in CONDITIONS:
        yield f"CREATE TRIGGER {name} BEFORE {deed} ON {table} WHEN {refused} BEGIN SELECT RAISE(ABORT, '{why}'); END"


def _postgresql() -> Iterator[str]:
    for name, table, deed, refused, why in CONDITIONS:
        yield _function(
            name, f"IF {refused} THEN {_refuse(why)} END IF; RETURN {'OLD' if deed == 'DELETE' else 'NEW'};"
        )
        yield f"CREATE TRIGGER {name} BEFORE {deed} ON {table} FOR EACH ROW EXECUTE FUNCTION keepstep_{name}()"
    yield _function("stays", _refuse("what is here is removed row by row or not at all"))
    for table in EMPTYING:
        yield f"CREATE TRIGGER {table}_stay BEFORE TRUNCATE ON {table} FOR EACH STATEMENT EXECUTE FUNCTION keepstep_stays()"


def _function(name: str, body: str) -> str:
    return f"CREATE FUNCTION keepstep_{name}() RETURNS trigger LANGUAGE plpgsql AS $guard$ BEGIN {body} END $guard$"


def _refuse(why: str) -> str:
    return f"RAISE EXCEPTION '{why}' USING ERRCODE = 'integrity_constraint_violation';"
