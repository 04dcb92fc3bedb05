"""What a server leaves behind in its state directory."""

import subprocess
import sys
from pathlib import Path

import pytest

from keepstep.client import Client
from keepstep.server.state_dir import HttpSign, StateDir

ONE, OTHER = "http://127.0.0.1:7447", "http://127.0.0.1:7448"
KILLED = """
import os, pathlib, signal, sys
from keepstep.server.state_dir import HttpSign, StateDir
HttpSign(StateDir(pathlib.Path(sys.argv[1])), sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_url_of_a_server_goes_with_it_and_that_of_another_stays(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    one = HttpSign(state, ONE)
    other = HttpSign(state, OTHER)
    one.take_down()
    assert state.http_served() == state.http() == OTHER
    other.take_down()
    assert state.http_served() is state.http() is None


def test_the_url_that_a_killed_server_left_is_not_gone_to(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    state.token()
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), ONE], check=False)
    assert (state.http(), state.http_served()) == (ONE, None)
    with pytest.raises(ValueError, match="does not run any more: start it again"):
        Client(state_dir=tmp_path)
