"""JAX arrays on meshes of host devices, saved by one or two processes and loaded onto other meshes.

In processes of their own: the number of host devices is set before JAX is imported, and JAX starts threads.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .runs import DEADLINE_S, PROGRAMS

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is not installed", allow_module_level=True)
pytestmark = pytest.mark.timeout(1600)


def start(devices: int, *arguments: object) -> "subprocess.Popen[str]":
    command = [sys.executable, str(PROGRAMS / "arrays_jax.py"), *map(str, arguments)]
    flags = f"--xla_force_host_platform_device_count={devices}"
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def result(process: "subprocess.Popen[str]") -> Any:
    try:
        out, error = process.communicate(timeout=DEADLINE_S)
    finally:
        process.kill()
    assert process.returncode == 0, error[-3000:]
    return json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A checkpoint of four devices, and the digest of what it holds."""
    directory = tmp_path_factory.mktemp("jax") / "checkpoints"
    return directory, result(start(4, directory, "save"))["digest"]


@pytest.mark.parametrize("devices", [4, 1])
def test_arrays_come_back_bit_exactly_in_another_sharding(saved: tuple[Path, str], devices: int) -> None:
    """Float32, bfloat16, a random key, replicated and not; four devices in a square, then in a row, then one."""
    found = result(start(devices, saved[0], "load"))
    assert found["digest"] == saved[1]
    assert found["step"] == 7
    assert found["refused"][0] == "['more'] of group train was not saved"
    assert "['half'] was saved as bfloat16 of (8, 2), and is to be float32 of (8, 12)" in found["refused"][1]


def test_two_processes_save_their_own_boxes(saved: tuple[Path, str], tmp_path: Path) -> None:
    with socket.socket() as mine:
        # Kept until they have ended, so that nobody else gets it: who listens there shares it with this one, which does not.
        mine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        mine.bind(("127.0.0.1", 0))
        ranks = [start(2, tmp_path, "ranks", mine.getsockname()[1], rank) for rank in (0, 1)]
        assert [result(rank)["devices"] for rank in ranks] == [4, 4]
    found = result(start(4, tmp_path, "load"))
    assert found["world"] == 2
    assert found["digest"] == saved[1]


def test_devices_that_are_no_neighbours_are_refused_with_advice(tmp_path: Path) -> None:
    assert "make no box: order the mesh" in result(start(1, tmp_path, "odd"))["refused"]
