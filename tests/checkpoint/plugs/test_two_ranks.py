"""Two real ranks under DDP: weights are saved once, random generators of each, and both go on bit-exactly."""

import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.stores.posix import PosixStore

from .runs import DEADLINE_S, PROGRAMS


def lines(process: "subprocess.Popen[str]") -> list[Any]:
    out, error = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, error[-4000:]
    return [json.loads(line) for line in out.splitlines() if line.startswith('{"last"')]


def start(library: str, folder: Path, port: int, rank: int) -> "subprocess.Popen[str]":
    """As torchrun starts it."""
    environment = os.environ | {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "test", "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    command = [sys.executable, str(PROGRAMS / "two_ranks.py"), library, str(folder)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_megatron_6858_every_rank_gets_its_own_random_numbers_back(library: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [start(library, tmp_path, port, rank) for rank in (0, 1)]
    try:
        said = [lines(rank) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()
    for whole, resumed in said:
        assert whole["last"] == "None"
        assert resumed["last"] != "None"
        assert resumed["digest"] == whole["digest"] == said[0][0]["digest"]
        assert resumed["drawn"] == whole["drawn"]
    assert said[0][0]["drawn"] != said[1][0]["drawn"]
    saved = Repository(PosixStore(tmp_path / "store"), "run").commits()
    assert saved[0].world_size == (1 if library == "lightning" else 2)
