"""What is over, as tables. Owns how it is searched: filters, order and pages are the database's work, by indexes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, bindparam, delete, func, insert, select, tuple_

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
        self._place = func.strpos if connections.is_postgresql else func.instr

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
        fits = and_(*_conditions(kind, where, self._place), *_span(since_s, until_s))
        page = select(*_ORDER, reports.c.record).join(reports, _BODY).where(fits)
        if start is not None:
            page = page.where(tuple_(*_ORDER) < tuple_(*start))
        page = page.order_by(*(column.desc() for column in _ORDER)).limit(limit + 1)
        with self._connections.reading() as connection:
            rows = connection.execute(page).all()
            total = connection.execute(select(func.count()).select_from(over).where(fits)).scalar() or 0
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
        part = part.where(over.c.what == kind, *_span(since_s, until_s))
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
        key | {"node": node}
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


def _conditions(kind: Kind, where: Mapping[str, str], place: Callable[..., Any]) -> Iterator[ColumnElement[bool]]:
    """``place``: the database's function for where a text begins in another one; 0 where it is not in it."""
    yield over.c.what == kind
    for name, wanted in where.items():
        if name == "q":
            yield place(over.c.words, text_of(wanted.lower())) > 0
        elif name == "node":
            on_node = finished_nodes.c.what == kind, finished_nodes.c.node == key_of(wanted)
            yield over.c.id.in_(select(finished_nodes.c.id).where(*on_node))
        elif name == "tenant":
            yield over.c.tenant.in_([key_of(tenant) for tenant in wanted.split(",")])
        else:
            yield over.c[name] == key_of(wanted)


def _span(since_s: float, until_s: float | None) -> Iterator[ColumnElement[bool]]:
    yield over.c.ended_s >= since_s
    if until_s is not None:
        yield over.c.ended_s < until_s
