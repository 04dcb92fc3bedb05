"""Everything that tests let Lightning and the Hugging Face Trainer do in processes of their own, done once for all processes of
a run of tests: importing one of them takes longer than all that is then done with it. Owns these runs, judges none.
"""

import fcntl
import importlib.util
import os
from pathlib import Path

import msgspec
import pytest
from tests.warm import Warm, as_torchrun

PLUGS = Path(__file__).parent / "plugs" / "programs"
ADOPT = Path(__file__).parent / "adopt" / "programs"
POINTS = {"lightning": ("receipt:2", "manifest:3", "record:2"), "transformers": ("receipt:2", "manifest:2", "record:3")}
"""Where a save is killed; see plugs/programs/children.py."""
MODULES = {"lightning": ["lightning.pytorch"], "transformers": ["transformers.trainer", "accelerate"]}
ONE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """What programs of one library have said, and where they have left their files."""

    folder: str
    killed: str
    """By ``train_LIBRARY.py`` of the plugs: a JSON line for each run without a fault and each resumed one."""
    ranks: list[str]
    """By each rank of ``two_ranks.py``: two JSON lines."""

    @property
    def two_ranks(self) -> Path:
        return Path(self.folder, "two")

    @property
    def plain(self) -> Path:
        """Of a training without keepstep."""
        return Path(self.folder, "plain")


def runs_of(library: str, root: Path) -> Runs:
    """Those of a library, made by whoever asks first; they lie below ``root``. Skips where it is not installed."""
    wanted = [library] if library == "lightning" else [library, "accelerate"]
    if any(importlib.util.find_spec(name) is None for name in wanted):
        pytest.skip(f"{library} is not installed")
    told = root / f"runs-{library}.json"
    with open(root / f"runs-{library}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            # Of this process: what failed may be tried again by another one.
            folder = root / f"runs-{library}-{os.getpid()}"
            folder.mkdir()
            told.write_bytes(msgspec.json.encode(_made(library, folder)))
    return msgspec.json.decode(told.read_bytes(), type=Runs)


def _made(library: str, folder: Path) -> Runs:
    environment = {**os.environ, **ONE}
    warm = Warm(*MODULES[library])
    try:
        for name in ("killed", "two", "plain", "rank-0", "rank-1"):
            (folder / name).mkdir()
        train = f"train_{library}.py"
        killed = warm.run([str(PLUGS / train), str(folder / "killed"), *POINTS[library]], folder, environment)
        # Each for itself: which rank says what must be known.
        own = [folder / "rank-0", folder / "rank-1"]
        command = [str(PLUGS / "two_ranks.py"), library, str(folder / "two")]
        with as_torchrun(2, environment) as environments:
            pids = [
                warm.start(command, folder, where / "said", env) for where, env in zip(own, environments, strict=True)
            ]
            try:
                ends = [warm.wait(pid) for pid in pids]
            finally:
                for pid in pids:
                    warm.kill(pid)
        assert ends == [0, 0], [(where / "said.err").read_text()[-4000:] for where in own]
        warm.run([str(ADOPT / train), str(folder / "plain" / "run")], folder, environment)
    finally:
        warm.close()
    return Runs(folder=str(folder), killed=killed, ranks=[(where / "said").read_text() for where in own])
