"""Commits a second: the journal beside the bare database, which gets the same rows ready-made and keeps them as durably."""

import itertools
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from keepstep.adapters.database.opening import open_database
from keepstep.adapters.database.rows import Insertion, mention_rows
from keepstep.adapters.database.schema import entries, mentions
from keepstep.adapters.memory.chain import body_of
from keepstep.core import facts as f
from keepstep.core.ids import NodeId, Session

BATCHES = (1, 16, 256)
ROUND_S = 0.25
ROUNDS = 7
"""Of each, in turn, so that all see the same disk. The median of the rounds' ratios counts."""
GOAL = 0.5
VARIETY, STRIDE = 103, 97
"""So many batches, about nodes so far apart: the pages of an index are as far apart as in a fleet."""

Commit = Callable[[int], None]


class Kind(NamedTuple):
    name: str
    where: str
    same: Commit
    """The same rows in the same tables, ready-made, by the bare driver."""
    least: Commit
    """Bodies alone, in a table of two columns."""


def facts(size: int, turn: int) -> list[f.Fact]:
    """Of as many nodes."""
    return [f.AgentHeard(node=NodeId(f"node-{(turn + n) % 10_000:05}"), session=Session("a-1")) for n in range(size)]


def section(quick: bool = False) -> str:
    rounds = 3 if quick else ROUNDS
    lines = [
        "## Journal commits",
        "",
        "One transaction each, flushed to the disk (SQLite: WAL, synchronous=FULL; PostgreSQL: fsync, synchronous_commit). The",
        "bare database gets the same bytes: rows made beforehand, by its driver, into the same tables; the journal encodes its",
        "entries, chains them, finds what they are about, and checks its term besides. The least is another measure: bodies",
        f"alone, in a table of two columns. Median of {rounds} rounds of each, in turn. Goal: {GOAL:.0%} of the bare rate.",
        "",
        "| database | entries a commit | journal commits/s | bare commits/s | ratio | of the least | entries/s |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keepstep-bench-", dir=Path.cwd())))
        kinds = [_sqlite(folder, stack)]
        server = start_postgres(stack)
        if server is not None:
            kinds.append(_postgresql(*server, stack))
        for kind in kinds:
            lines += _rows(kind, rounds)
    if server is None:
        lines.append("| PostgreSQL | | not installed here | | | | |")
    return "\n".join(lines) + "\n"


def _rows(kind: Kind, rounds: int) -> list[str]:
    database = open_database(kind.where)
    try:
        assert database.leadership.acquire("bench", "", 3600.0) is not None
        turns = itertools.cycle(range(0, VARIETY * STRIDE, STRIDE))

        def ours(size: int) -> None:
            database.journal.append(time.time(), facts(size, next(turns)), [(Session("s"), 1)] * size)

        rows = []
        for size in BATCHES:
            told = [tuple(_rate(one, size) for one in (ours, kind.same, kind.least)) for _ in range(rounds)]
            journal, bare, _ = (statistics.median(rates) for rates in zip(*told, strict=True))
            ratio = statistics.median(ours / same for ours, same, _ in told)
            least = statistics.median(ours / bodies for ours, _, bodies in told)
            rows.append(
                f"| {kind.name} | {size} | {journal:,.0f} | {bare:,.0f} | {ratio:.0%} | {least:.0%} | {journal * size:,.0f} |"
            )
            print(rows[-1], flush=True)
        return rows
    finally:
        database.close()


def _rate(commit: Commit, size: int) -> float:
    count, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < ROUND_S:
        commit(size)
        count += 1
    return count / (time.perf_counter() - began_s)


class Made:
    """Rows as the journal writes them, about the same nodes, made before the clock runs but for their numbers."""

    def __init__(self) -> None:
        self._seq, self._turn = 0, 0
        self._made = {size: [self._of(facts(size, turn * STRIDE)) for turn in range(VARIETY)] for size in BATCHES}

    @staticmethod
    def _of(some: list[f.Fact]) -> tuple[list[bytes], list[tuple[str, int, int, bytes | None]]]:
        return [body_of(fact) for fact in some], mention_rows(0, some)

    def next(self, size: int) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Of ``entries``, and of ``mentions``."""
        first, (bodies, about) = self._seq + 1, self._made[size][self._turn % VARIETY]
        self._seq, self._turn = self._seq + size, self._turn + 1
        rows = [(first + n, 1.0, body, b"p" * 32, b"h" * 32, "s", 1) for n, body in enumerate(bodies)]
        return rows, [(subject, first + last, first + least, seqs) for subject, last, least, seqs in about]


def _empty(where: str) -> None:
    open_database(where).close()


def _sqlite(folder: Path, stack: ExitStack) -> Kind:
    def connected(path: Path) -> sqlite3.Connection:
        db = sqlite3.connect(path, isolation_level=None)
        stack.callback(db.close)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        return db

    _empty(str(folder / "same.db"))
    full, made = connected(folder / "same.db"), Made()
    least = connected(folder / "least.db")
    least.execute("CREATE TABLE bare (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def same(size: int) -> None:
        rows, about = made.next(size)
        full.execute("BEGIN IMMEDIATE")
        full.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        full.executemany("INSERT INTO mentions VALUES (?, ?, ?, ?)", about)
        full.execute("COMMIT")

    def bodies(size: int) -> None:
        least.execute("BEGIN IMMEDIATE")
        least.executemany("INSERT INTO bare (body) VALUES (?)", _bodies(size))
        least.execute("COMMIT")

    return Kind("SQLite", str(folder / "journal.db"), same, bodies)


_BODY = body_of(facts(1, 0)[0])


def _bodies(size: int) -> Sequence[tuple[bytes]]:
    return [(_BODY,)] * size


def _postgresql(where: str, full_url: str, least_url: str, stack: ExitStack) -> Kind:
    import psycopg
    from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

    _empty(full_url)
    full, made = stack.enter_context(psycopg.connect(full_url, autocommit=True)), Made()
    least = stack.enter_context(psycopg.connect(least_url, autocommit=True))
    least.execute("CREATE TABLE bare (seq BIGSERIAL PRIMARY KEY, body BYTEA NOT NULL)")
    dialect = PGDialect_psycopg()  # type: ignore[no-untyped-call]
    into_entries, into_mentions = Insertion(entries, dialect), Insertion(mentions, dialect)
    cursor = full.cursor()

    def same(size: int) -> None:
        rows, about = made.next(size)
        cursor.execute("BEGIN")
        into_entries.execute(cursor, rows)
        into_mentions.execute(cursor, about)
        full.commit()

    def bodies(size: int) -> None:
        with least.transaction(), least.cursor() as each:
            each.executemany("INSERT INTO bare (body) VALUES (%s)", _bodies(size))

    return Kind("PostgreSQL", where, same, bodies)


def start_postgres(stack: ExitStack) -> tuple[str, str, str] | None:
    """URLs of three empty databases of a server that flushes; None where there is none to start."""
    from tests import postgres

    binaries = postgres.find_binaries()
    if binaries is None:
        return None
    unsafe = {name: postgres.SETTINGS.pop(name) for name in ("fsync", "full_page_writes")}
    stack.callback(postgres.SETTINGS.update, unsafe)
    server = postgres.PostgresServer(binaries)
    stack.callback(server.close)
    return server.fresh(), server.fresh(), server.fresh()
