"""A server that cannot be had says why, and what to do; and it has led nobody by then."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests.server.conftest import DEADLINE_S

from keepstep.server.config import HttpAddress
from keepstep.server.listening import bind
from keepstep.server.state_dir import StateDir


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        yield holder.getsockname()[1]


def refused(state: StateDir, *options: str, **environ: str) -> str:
    """What a server that does not come up says."""
    argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(state.path), *options]
    done = subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1, done.stderr
    assert "leads, term" not in done.stderr and not state.address_file.exists()
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def test_a_port_that_is_taken(state: StateDir, taken: int) -> None:
    assert refused(state, "--http", f"127.0.0.1:{taken}") == (
        f"keepstep server: cannot listen on 127.0.0.1:{taken} for HTTP: Address already in use; "
        "name another one with --http HOST:PORT, or --http off"
    )
    assert refused(state, "--listen", f"tcp:127.0.0.1:{taken}") == (
        f"keepstep server: cannot listen on tcp:127.0.0.1:{taken}: Address already in use; name another one with --listen"
    )


def test_a_port_that_nobody_insists_on_is_replaced(taken: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "keepstep.server")
    (door,) = bind(HttpAddress("127.0.0.1", taken, must=False))
    with door:
        assert door.getsockname()[1] not in (taken, 0)
    assert "Address already in use; any free port does" in caplog.text


@pytest.mark.parametrize("named", ["option", "variable"])
def test_a_database_that_does_not_answer(state: StateDir, named: str) -> None:
    with socket.socket() as nobody:  # bound, and not listening: no other program has this port
        nobody.bind(("127.0.0.1", 0))
        url = f"postgresql://eve@127.0.0.1:{nobody.getsockname()[1]}/x"
        told = refused(state, "--database", url) if named == "option" else refused(state, KEEPSTEP_DATABASE=url)
    assert re.match(r"keepstep server: cannot read the journal .*refused", told), told
    assert told.endswith("; see that it runs, and what --database or $KEEPSTEP_DATABASE names")
