"""The environment of a rank: torchrun's variables and ours. Owns their values for one launch order."""

from typing import NamedTuple

import msgspec

from keepstep.core.intents import Launch, RankPlace
from keepstep.launcher.settings import Settings
from keepstep.wire import environment

_RESTARTS_MAX = 1_000_000
"""The budget is the control plane's; scripts that compare with it shall never think that they have run out."""


class Surroundings(NamedTuple):
    """Where a rank finds what the launcher made for it."""

    master: tuple[str, int]
    cell: str
    error_file: str
    snapshots: str
    """Path of the snapshot server's socket; empty where there is none."""


def rank_environment(launch: Launch, place: RankPlace, settings: Settings, around: Surroundings) -> dict[str, str]:
    """What is set on top of the launcher's own environment."""
    variables = {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(launch.world_size),
        "LOCAL_WORLD_SIZE": str(len(launch.ranks)),
        "GROUP_RANK": str(launch.group_rank),
        "GROUP_WORLD_SIZE": str(launch.group_world_size),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(launch.world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": around.master[0],
        "MASTER_PORT": str(around.master[1]),
        "TORCHELASTIC_RUN_ID": launch.job,
        "TORCHELASTIC_RESTART_COUNT": str(launch.generation - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(_RESTARTS_MAX),
        # Without a store of ours rank 0 hosts one, as it does under a launcher that has none.
        "TORCHELASTIC_USE_AGENT_STORE": str(bool(launch.store)),
        environment.ERROR_FILE: around.error_file,
        environment.JOB: launch.job,
        environment.NODE: settings.node,
        environment.GENERATION: f"{launch.generation:010d}",
        environment.TOKEN: settings.token,
        environment.DEVICE: str(place.slot),
        environment.PROGRESS: around.cell,
        environment.STATE_DIR: settings.state_dir,
        environment.SERVER: settings.server,
        environment.CHECKPOINT_DIR: launch.checkpoint_dir or settings.checkpoint_dir,
        environment.SNAPSHOTS: around.snapshots,
    }
    if launch.restore is not None:
        variables[environment.RESTORE] = msgspec.json.encode(launch.restore).decode()
    # An empty value would say "here" to a script; absent says "none".
    return {name: value for name, value in variables.items() if value}
