"""Sessions of one process, as many as a test needs: a new one over new objects stands for a restarted process."""

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from keepstep.checkpoint.snapshot.control import SnapshotControl
from keepstep.train.cadence import Cadence
from keepstep.train.loader import endless, resumable
from keepstep.train.loop import Session
from keepstep.train.state import Registered
from keepstep.train.storage import DirectoryStorage, SnapshotStorage, Storage
from keepstep.train.worker import RestoreOrder, Worker

READY_S = 120


def worker(
    rank: int = 0, world_size: int = 1, socket: str = "", restore: RestoreOrder | None = None, generation: int = 1
) -> Worker:
    return Worker(
        job="job", rank=rank, world_size=world_size, generation=generation, snapshot_socket=socket, progress_file="",
        checkpoint_dir="", restore=restore,
    )  # fmt: skip


def open_session(
    storage: Storage, who: Worker, state: dict[str, Any], every: int = 1, elastic: bool = False
) -> Session:
    cadence = Cadence(checkpoint_s=None, checkpoint_steps=every, snapshot_steps=1, alone=True)
    return Session(who, Registered(state), cadence, storage, elastic)


class Progressed:
    """State of the script itself, such as the position in a gradient accumulation."""

    def __init__(self) -> None:
        self.micro_steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"micro_steps": self.micro_steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.micro_steps = state["micro_steps"]


class Job:
    """A training job that uses everything a checkpoint must hold: dropout, batch statistics, momenta, a schedule that
    changes the learning rate, a loss scale that grows, data in a shuffled order, three libraries' random numbers.
    """

    def __init__(self, batch: int = 4, length: int = 27, workers: int = 0) -> None:
        torch.manual_seed(7)
        random.seed(7)
        np.random.seed(7)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(6, 16),
            torch.nn.BatchNorm1d(16),
            torch.nn.ReLU(),
            torch.nn.Dropout(0.3),
            torch.nn.Linear(16, 1),
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=3, gamma=0.7)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.extra = Progressed()
        x = torch.arange(length * 6, dtype=torch.float32).reshape(length, 6).sin()
        data = TensorDataset(torch.arange(length), x)
        self.loader = resumable(DataLoader(data, batch_size=batch, shuffle=True, num_workers=workers), seed=5)
        self.batches = endless(self.loader)
        self.ids: list[int] = []

    def state(self) -> dict[str, Any]:
        names = ("model", "optimizer", "scheduler", "scaler", "extra")
        return {**{name: getattr(self, name) for name in names}, "data": self.loader}

    def train_step(self) -> None:
        ids, x = next(self.batches)
        self.ids += ids.tolist()
        noise = random.random() + float(np.random.normal())
        for half in x.chunk(2):
            loss = (self.model(half.repeat(2, 1)) - noise).square().mean()
            self.scaler.scale(loss).backward()
            self.extra.micro_steps += 1
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        self.scheduler.step()

    def fingerprint(self) -> str:
        """Everything, and what the next random numbers are."""
        tensors = [*self.model.state_dict().values()]
        tensors += [value for each in self.optimizer.state.values() for value in each.values()]
        found = [tensor.double().numpy().tobytes().hex() for tensor in tensors]
        rest = (
            self.scheduler.state_dict(),
            self.scaler.state_dict(),
            self.extra.state_dict(),
            self.loader.state_dict(),
        )
        return repr((found, rest, random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()))


class SnapshotServer:
    """A real snapshot server process, and the launcher's connection to it."""

    def __init__(self, folder: Path, job: str = "job") -> None:
        self.socket = str(folder / "s")
        command = [sys.executable, "-m", "keepstep.checkpoint.snapshot", "--socket", self.socket, "--job", job]
        command += ["--directory", str(folder / "checkpoints"), "--parent", str(os.getpid())]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        json.loads(self.process.stdout.readline())
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.control = self.call(lambda: SnapshotControl.connect(self.socket, job, lambda event: None))

    def call(self, make: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(READY_S)

    def begin(self, generation: int, world_size: int) -> None:
        self.call(lambda: self.control.begin(generation, world_size))

    def close(self) -> None:
        self.call(self.control.quit)
        self.call(self.control.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(READY_S)
        self._loop.close()
        self.process.wait(READY_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def snapshot_server(tmp_path: Path) -> Iterator[SnapshotServer]:
    server = SnapshotServer(tmp_path)
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def job_type() -> type[Job]:
    return Job


@pytest.fixture
def opened() -> Iterator[list[Session]]:
    """Sessions to close at the end of the test."""
    sessions: list[Session] = []
    yield sessions
    for session in sessions:
        session.close()


@pytest.fixture
def in_directory(tmp_path: Path, opened: list[Session]) -> Callable[..., Session]:
    """Opens a session that saves every step in a directory."""

    def make(state: dict[str, Any], *, directory: str = "checkpoints", **options: Any) -> Session:
        who = worker(options.pop("rank", 0), options.pop("world_size", 1))
        opened.append(open_session(DirectoryStorage(who, tmp_path / directory), who, state, **options))
        return opened[-1]

    return make


@pytest.fixture
def in_memory(snapshot_server: SnapshotServer, opened: list[Session]) -> Callable[..., Session]:
    """Opens a session that snapshots every step to a real snapshot server."""

    def make(state: dict[str, Any], **options: Any) -> Session:
        generation, order = options.pop("generation", 1), options.pop("restore", None)
        who = worker(socket=snapshot_server.socket, restore=order, generation=generation)
        storage = SnapshotStorage(who)
        assert storage._client is not None
        # A snapshot that finds no slot at once is skipped, which is right, and not what is looked at here.
        storage._client._patience_s = READY_S
        opened.append(open_session(storage, who, state, every=options.pop("every", 1000), **options))
        return opened[-1]

    return make
