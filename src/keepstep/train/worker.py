"""Who this process is, as launcher and environment tell it. Owns the reading of the environment; decides nothing."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from keepstep.train.errors import RestoreFailed
from keepstep.wire import environment


class RestoreOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Which state to start from, as the launcher hands it down (the JSON of the control plane's own order)."""

    step: int
    tier: Literal["ram", "disk"]
    key: str
    generation: int
    world_size: int
    peers: tuple[str, ...] = ()


class Worker(msgspec.Struct, frozen=True, kw_only=True):
    job: str
    rank: int
    world_size: int
    generation: int
    """0 outside a launcher. torchrun's restart count is none: it begins again with every torchrun."""
    snapshot_socket: str
    """Empty outside a launcher."""
    progress_file: str
    checkpoint_dir: str
    """Empty where the environment names none."""
    restore: RestoreOrder | None
    nodes: int = 1
    """Machines that the ranks are on, as far as the environment tells."""


def read_worker(env: Mapping[str, str] = os.environ) -> Worker:
    """Raises RestoreFailed for an order that cannot be read: starting from nothing instead would lose the run."""
    order = env.get(environment.RESTORE)
    try:
        restore = msgspec.json.decode(order, type=RestoreOrder) if order else None
    except msgspec.MsgspecError as error:
        raise RestoreFailed(f"{environment.RESTORE} is not a restore order: {error}") from error
    return Worker(
        job=env.get(environment.JOB) or script_name(),
        rank=int(env.get("RANK", "0")),
        world_size=int(env.get("WORLD_SIZE", "1")),
        generation=int(env.get(environment.GENERATION) or "0"),
        snapshot_socket=env.get(environment.SNAPSHOTS, ""),
        progress_file=env.get(environment.PROGRESS, ""),
        checkpoint_dir=env.get(environment.CHECKPOINT_DIR, ""),
        restore=restore,
        nodes=max(1, int(env.get("WORLD_SIZE", "1")) // int(env.get("LOCAL_WORLD_SIZE") or env.get("WORLD_SIZE", "1"))),
    )


def script_name() -> str:
    """Names a run that nobody named: its script without the suffix."""
    return Path(sys.argv[0] if sys.argv and sys.argv[0] else "session").stem or "session"
