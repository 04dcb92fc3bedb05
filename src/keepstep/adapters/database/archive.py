"""What is over, as tables. Owns how it is searched: filters, order and pages are the database's work, by indexes."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    UnaryExpression,
    and_,
    bindparam,
    delete,
    func,
    insert,
    select,
    tuple_,
)
from sqlalchemy.sql.operators import custom_op

from keepstep.adapters.database.engine import Connections
from keepstep.adapters.database.migrate import Schema
from keepstep.adapters.database.rows import key_of, replacing, text_of
from keepstep.adapters.database.schema import finished as over
from keepstep.adapters.database.schema import finished_nodes, marks, reports
from keepstep.adapters.memory.archive import (
    KINDS,
    Kind,
    Record,
    check_filters,
    cursor_of,
    end_of,
    nodes_of,
    read_cursor,
    words_of,
)
from keepstep.ports import Page
from keepstep.review.records import JobRecord

READ_CHUNK = 500
GLOB_CHARS = 1000
"""Of a text that is looked for, at most, by way of a pattern."""

_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[Kind, Callable[[bytes], Record]] = {
    kind: msgspec.msgpack.Decoder(type_).decode for type_, kind in KINDS.items()
}
_ORDER = (over.c.ended_s, over.c.id)
_MARK = select(marks.c.seq).where(marks.c.name == "archived")
_FORGET_NODES = delete(finished_nodes).where(
    finished_nodes.c.what == bindparam("of_what"), finished_nodes.c.id == bindparam("of_id")
)
_BODY = and_(reports.c.what == over.c.what, reports.c.id == over.c.id)


class SqlArchive:
    """Meets ports.Archive. An old database that is only looked at has no such tables."""

    def __init__(self, connections: Connections, schema: Schema) -> None:
        self._connections = connections
        self._schema = schema
        self._dialect = _PostgresqlDialect() if connections.is_postgresql else _SqliteDialect()

    def put(self, seq: int, finished: Sequence[tuple[Record, bytes]]) -> None:
        """Where the database is only looked at, nothing is put: what is not in it stays out."""
        if self._connections.read_only:
            return
        last = {(KINDS[type(record)], key_of(record.id)): (record, report) for record, report in finished}
        with self._connections.writing() as connection:
            if last:
                _put(connection, last)
            mark = replacing(connection, marks, ("name",), growing="seq")
            connection.execute(mark, {"name": "archived", "seq": seq, "hash": None})

    def complete_to(self) -> int:
        if not self._schema.current:
            return 0
        with self._connections.reading() as connection:
            return connection.execute(_MARK).scalar() or 0

    def list(
        self, kind: Kind, where: Mapping[str, str] = {}, *, cursor: str = "", limit: int = 100,
        since_s: float = 0.0, until_s: float | None = None,
    ) -> Page:  # fmt: skip
        check_filters(where)
        start = read_cursor(cursor)
        if not self._schema.current:
            return Page(records=())
        asked = _Asked(kind, where, since_s, until_s, self._dialect)
        with self._connections.reading() as connection:
            rows = connection.execute(asked.page(start, limit)).all()
            # What fits on one page is counted by then; only of more is a second look needed.
            whole = start is None and len(rows) <= limit
            total = len(rows) if whole else connection.execute(asked.count()).scalar() or 0
        more = cursor_of(rows[limit - 1].ended_s, rows[limit - 1].id) if len(rows) > limit else ""
        decode = _decoders[kind]
        return Page(records=tuple(decode(row.record) for row in rows[:limit]), next=more, total=total)

    def get(self, kind: Kind, id: str) -> bytes | None:
        if not self._schema.current:
            return None
        asked = select(reports.c.report).where(reports.c.what == kind, reports.c.id == key_of(id))
        with self._connections.reading() as connection:
            found = connection.execute(asked).scalar()
        return bytes(found) if found is not None else None

    def records(self, kind: Kind, since_s: float = 0.0, until_s: float | None = None) -> Iterator[Record]:
        if not self._schema.current:
            return
        decode = _decoders[kind]
        last: tuple[float, str] | None = None
        while rows := self._records_after(kind, since_s, until_s, last):
            for row in rows:
                yield decode(row.record)
            last = rows[-1].ended_s, rows[-1].id

    def _records_after(
        self, kind: Kind, since_s: float, until_s: float | None, last: tuple[float, str] | None
    ) -> Sequence[Any]:
        part = select(*_ORDER, reports.c.record).join(reports, _BODY)
        part = part.where(over.c.what == kind, *_span(over.c.ended_s, since_s, until_s))
        if last is not None:
            part = part.where(tuple_(*_ORDER) > tuple_(*last))
        with self._connections.reading() as connection:
            return connection.execute(part.order_by(*_ORDER).limit(READ_CHUNK)).all()


def _put(connection: Connection, given: Mapping[tuple[Kind, str], tuple[Record, bytes]]) -> None:
    """Table by table, each with one statement for all."""
    keys = [{"what": what, "id": id} for what, id in given]
    found = [{**key, **_searched(record)} for key, (record, _) in zip(keys, given.values(), strict=True)]
    bodies = [
        key | {"record": _encode(record), "report": report}
        for key, (record, report) in zip(keys, given.values(), strict=True)
    ]
    nodes = [
        key | {"node": node, "ended_s": end_of(record)}
        for key, (record, _) in zip(keys, given.values(), strict=True)
        for node in dict.fromkeys(map(key_of, nodes_of(record)))
    ]
    connection.execute(replacing(connection, over, ("what", "id")), found)
    connection.execute(replacing(connection, reports, ("what", "id")), bodies)
    connection.execute(_FORGET_NODES, [{"of_what": key["what"], "of_id": key["id"]} for key in keys])
    if nodes:
        connection.execute(insert(finished_nodes), nodes)


def _searched(record: Record) -> dict[str, str | float | None]:
    """Columns that lists are filtered by."""
    named = {name: getattr(record, name, None) for name in ("job", "tenant", "state", "cause", "kind")}
    if isinstance(record, JobRecord):
        named["job"] = record.id
    row: dict[str, str | float | None] = {"ended_s": end_of(record), "words": text_of(words_of(record))}
    return row | {name: key_of(value) if isinstance(value, str) else None for name, value in named.items()}


class _Asked:
    """One search. Where a node is asked for, the short list of what was there leads, in the same order as that of all."""

    def __init__(
        self, kind: Kind, where: Mapping[str, str], since_s: float, until_s: float | None, dialect: "_Dialect"
    ) -> None:  # fmt: skip
        self._key: tuple[ColumnElement[Any], ColumnElement[Any]] = (over.c.ended_s, over.c.id)
        self._from: FromClause = over
        conditions = [over.c.what == kind]
        if "node" in where:
            at = finished_nodes.c
            self._key = (at.ended_s, at.id)
            # From the short list to the long table and not the other way, where SQLite would begin to spare itself a sort.
            pairs = ((over.c.what, at.what), (over.c.ended_s, at.ended_s), (over.c.id, at.id))
            same = and_(*(there == dialect.unindexed(here) for there, here in pairs))
            self._from = finished_nodes.join(over, same)
            conditions = [at.what == kind, at.node == key_of(where["node"])]
        conditions += _conditions(where, dialect)
        self._fits = and_(*conditions, *_span(self._key[0], since_s, until_s))

    def page(self, start: tuple[float, str] | None, limit: int) -> "Select[Any]":
        """One row more than ``limit``, where there are more."""
        found = select(*self._key, reports.c.record).select_from(self._from.join(reports, _BODY)).where(self._fits)
        if start is not None:
            found = found.where(tuple_(*self._key) < tuple_(*start))
        return found.order_by(*(column.desc() for column in self._key)).limit(limit + 1)

    def count(self) -> "Select[Any]":
        return select(func.count()).select_from(self._from).where(self._fits)


class _Dialect(Protocol):
    def holds(self, column: ColumnElement[str], text: str) -> ColumnElement[bool]:
        """Whether the column has that text in it, to the letter."""

    def unindexed(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """The column, where an index on it would mislead the planner."""


class _PostgresqlDialect:
    """It knows how common a value is by itself."""

    def holds(self, column: ColumnElement[str], text: str) -> ColumnElement[bool]:
        return func.strpos(column, text) > 0

    def unindexed(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return column


class _SqliteDialect:
    def holds(self, column: ColumnElement[str], text: str) -> ColumnElement[bool]:
        """GLOB takes half as long as instr, but no pattern of any length."""
        if len(text) > GLOB_CHARS:
            return func.instr(column, text) > 0
        literal = re.sub(r"[*?[]", r"[\g<0>]", text)
        return column.op("GLOB", is_comparison=True)(f"*{literal}*")

    def unindexed(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return UnaryExpression(column, operator=_PLUS, type_=column.type)


_PLUS = custom_op[str]("+")


def _conditions(where: Mapping[str, str], dialect: _Dialect) -> Iterator[ColumnElement[bool]]:
    """Of all filters but that of a node. An id leads wherever it is given. Beside words, which are in no index, only a job is
    worth one: for the others a jump for each of very many rows would take longer than to look at all in their order."""
    leads = ("id",) if "id" in where else ("job",) if "q" in where else where
    for name, wanted in where.items():
        if name == "q":
            yield dialect.holds(over.c.words, text_of(wanted.lower()))
        elif name != "node":
            column = over.c[name] if name in leads else dialect.unindexed(over.c[name])
            several = [key_of(tenant) for tenant in wanted.split(",")] if name == "tenant" else []
            yield column.in_(several) if len(several) > 1 else column == key_of(wanted)


def _span(ended_s: ColumnElement[Any], since_s: float, until_s: float | None) -> Iterator[ColumnElement[bool]]:
    if since_s > 0:
        yield ended_s >= since_s
    if until_s is not None:
        yield ended_s < until_s
