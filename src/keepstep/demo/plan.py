"""What one demo is to do and where its files lie. Owns paths, the job's command line and the claim on the out directory."""

import fcntl
import os
import secrets
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from keepstep.server.state_dir import StateDir

RANKS_PER_NODE = 2
NODES = 2
WORLD_SIZE = RANKS_PER_NODE * NODES
CHECKPOINT_EVERY_STEPS = 10
STEP_TIME_S = 0.1
"""A step of the demo's model takes 10 to 30 ms; padded to this, a person can follow it."""
START_STEPS = 20
"""Before the first fault."""
STEPS_PER_FAULT = 22
GAP_STEPS = 12
"""Steps between the end of a recovery and the next fault."""
MARK = ".keepstep-demo"


class OutDirectoryTaken(ValueError):
    """The out directory holds something that no demo made, or a demo runs in it."""


def default_steps(faults: int) -> int:
    return START_STEPS + STEPS_PER_FAULT * faults + GAP_STEPS


def example_script() -> Path:
    """``train_gpt.py``: in the installed package, else in the repository. Raises FileNotFoundError."""
    package = Path(__file__).resolve().parents[1]
    places = (package / "examples", package.parents[1] / "examples")
    for folder in places:
        if (folder / "train_gpt.py").is_file():
            return folder / "train_gpt.py"
    raise FileNotFoundError(
        f"train_gpt.py is in none of {', '.join(map(str, places))}; install Keepstep again, or run from a checkout"
    )


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    out: Path
    script: Path
    steps: int
    spares: int = 1
    job: str = field(default_factory=lambda: f"demo-{secrets.token_hex(3)}")

    @property
    def state(self) -> StateDir:
        return StateDir(self.out / "state")

    @property
    def log(self) -> Path:
        """Output of ``keepstep run``: the front, the launchers and all ranks."""
        return self.out / "run.log"

    @property
    def final(self) -> Path:
        """Where each rank writes the digest of its final weights."""
        return self.out / "final.txt"

    @property
    def order(self) -> Path:
        """The fault that demo.job is to raise inside a rank."""
        return self.out / "fault.json"

    @property
    def checkpoints(self) -> Path:
        return self.state.path / "checkpoints" / self.job

    @property
    def rank_logs(self) -> Path:
        return self.state.path / "logs" / self.job

    def command(self) -> list[str]:
        """``keepstep run`` for the job that is going to be hurt."""
        return [
            *(sys.executable, "-m", "keepstep", "run", "--job", self.job, "--state-dir", str(self.state.path)),
            *("--nproc-per-node", str(RANKS_PER_NODE), "--nodes", str(NODES), "--spares", str(self.spares)),
            *("-m", "keepstep.demo.job", str(self.script), *training_options(self.steps, self.final)),
            *("--step-time", str(STEP_TIME_S), "--checkpoint-every-steps", str(CHECKPOINT_EVERY_STEPS)),
        ]

    def reference(self) -> "DemoPlan":
        return DemoPlan(out=self.out / "reference", script=self.script, steps=self.steps, job=f"{self.job}-reference")

    def reference_command(self) -> list[str]:
        """The same training without padding, faults or a second node: as many ranks, so the same additions."""
        return [
            *(sys.executable, "-m", "keepstep", "run", "--job", self.job, "--state-dir", str(self.state.path)),
            *("--nproc-per-node", str(WORLD_SIZE)),
            *(str(self.script), *training_options(self.steps, self.final)),
        ]


def training_options(steps: int, final: Path) -> tuple[str, ...]:
    """Everything that the weights depend on, and what makes them comparable."""
    return ("--steps", str(steps), "--log-every", "1", "--out", str(final))


class OutDirectory:
    """A claim on the out directory: one demo at a time, and only over what an earlier demo left there.

    Raises OutDirectoryTaken.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            mark = path / MARK
            if not mark.exists() and any(path.iterdir()):
                raise OutDirectoryTaken(
                    f"{path} is not empty and no earlier demo made it; choose another --out, or empty it"
                )
            self._fd = os.open(mark, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise OutDirectoryTaken(f"cannot use {path}: {error.strerror}; choose another --out") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            raise OutDirectoryTaken(f"another demo runs in {path}; choose another --out, or wait for it") from None

    def __enter__(self) -> "OutDirectory":
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != MARK:
                entry.unlink()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._fd)

    def tidy(self, *, keep: bool) -> None:
        """Leave what is worth reading: the report, the journal, the logs; with ``keep`` the checkpoints as well."""
        for state in (self.path / "state", self.path / "reference" / "state"):
            shutil.rmtree(state / "run", ignore_errors=True)
            if not keep:
                shutil.rmtree(state / "checkpoints", ignore_errors=True)
