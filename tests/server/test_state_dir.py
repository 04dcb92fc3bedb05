"""What a server leaves behind in its state directory."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from keepstep.client import Client
from keepstep.server.state_dir import HttpSign, ServerLock, StateDir

ONE, OTHER = "http://127.0.0.1:7447", "http://127.0.0.1:7448"
KILLED = """
import os, pathlib, signal, sys
from keepstep.server.state_dir import HttpSign, StateDir
HttpSign(StateDir(pathlib.Path(sys.argv[1])), sys.argv[2])
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_server_that_comes_up_is_told_from_one_that_is_stuck(tmp_path: Path) -> None:
    state = StateDir(tmp_path)
    tick_s = 0.05  # longer than one of the kernel's, by which files are dated
    for _ in range(2):
        lock = ServerLock(state)
        assert state.is_coming_up()
        time.sleep(tick_s)
        state.publish(state.address_file, "unix:/nowhere")
        assert not state.is_coming_up()
        time.sleep(tick_s)
        lock.release()


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
