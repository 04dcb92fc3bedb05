"""Commits a second: the journal (chain, mentions, origins, fence) beside the bare database with the same bodies and batches."""

import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from keepstep.adapters.database.opening import open_database
from keepstep.adapters.memory.chain import body_of
from keepstep.core import facts as f
from keepstep.core.ids import NodeId, Session

BATCHES = (1, 16, 256)
LASTS_S = 2.0
ROUNDS = 3
"""Of each; alternating, so that both see the same disk. The median counts."""

FACT = f.AgentHeard(node=NodeId("node-00017"), session=Session("a-node-00017-1"))
BODY = body_of(FACT)

Commit = Callable[[int], None]


def section() -> str:
    lines = [
        "## Journal commits",
        "",
        "One transaction each, flushed to the disk (SQLite: WAL, synchronous=FULL; PostgreSQL: fsync, synchronous_commit). The",
        "bare database: its driver inserts the same bodies into a table of two columns, and nothing else.",
        "",
        "| database | entries a commit | journal commits/s | bare commits/s | ratio | entries/s |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="keepstep-bench-", dir=Path.cwd())))
        kinds = [("SQLite", str(folder / "journal.db"), _bare_sqlite(folder / "bare.db"))]
        server = start_postgres(stack)
        if server is not None:
            kinds.append(("PostgreSQL", server[0], _bare_postgres(server[1])))
        for name, where, bare in kinds:
            lines += _rows(name, where, bare)
    if server is None:
        lines.append("| PostgreSQL | | not installed here | | | |")
    return "\n".join(lines) + "\n"


def _rows(name: str, where: str, bare: Commit) -> list[str]:
    database = open_database(where)
    try:
        assert database.leadership.acquire("bench", "", 3600.0) is not None

        def ours(size: int) -> None:
            database.journal.append(time.time(), [FACT] * size, [(Session("s"), 1)] * size)

        rows = []
        for size in BATCHES:
            pairs = [(_rate(ours, size), _rate(bare, size)) for _ in range(ROUNDS)]
            journal, plain = (sorted(values)[ROUNDS // 2] for values in zip(*pairs, strict=True))
            rows.append(
                f"| {name} | {size} | {journal:,.0f} | {plain:,.0f} | {journal / plain:.0%} | {journal * size:,.0f} |"
            )
            print(rows[-1], flush=True)
        return rows
    finally:
        database.close()


def _rate(commit: Commit, size: int) -> float:
    count, began_s = 0, time.perf_counter()
    while time.perf_counter() - began_s < LASTS_S / ROUNDS:
        commit(size)
        count += 1
    return count / (time.perf_counter() - began_s)


def _bare_sqlite(path: Path) -> Commit:
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE bare (seq INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def commit(size: int) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO bare (body) VALUES (?)", [(BODY,)] * size)
        db.execute("COMMIT")

    return commit


def _bare_postgres(url: str) -> Commit:
    import psycopg

    db = psycopg.connect(url, autocommit=True)
    db.execute("CREATE TABLE bare (seq BIGSERIAL PRIMARY KEY, body BYTEA NOT NULL)")

    def commit(size: int) -> None:
        with db.transaction(), db.cursor() as cursor:
            cursor.executemany("INSERT INTO bare (body) VALUES (%s)", [(BODY,)] * size)

    return commit


def start_postgres(stack: ExitStack) -> tuple[str, str] | None:
    """URLs of two empty databases of a server that flushes; None where there is none to start."""
    from tests import postgres

    binaries = postgres.find_binaries()
    if binaries is None:
        return None
    unsafe = {name: postgres.SETTINGS.pop(name) for name in ("fsync", "full_page_writes")}
    stack.callback(postgres.SETTINGS.update, unsafe)
    server = postgres.PostgresServer(binaries)
    stack.callback(server.close)
    return server.fresh(), server.fresh()
