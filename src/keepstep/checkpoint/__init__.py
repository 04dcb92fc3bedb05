"""Checkpoints: a library of its own. Imports no control code; numpy-only, torch is touched lazily.

    flatten / unflatten     state trees without pickle
    SnapshotClient          a worker's side of the snapshot server (memory tier and write-behind)
    SnapshotControl         the launcher's side of it (asyncio)
    LocalCheckpoints        the same disk format without any server

Names are loaded on first use: the snapshot server and the launcher import this package without numpy's cost.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keepstep.checkpoint.errors import CheckpointError as CheckpointError
    from keepstep.checkpoint.errors import SaveFailed as SaveFailed
    from keepstep.checkpoint.errors import SnapshotRefused as SnapshotRefused
    from keepstep.checkpoint.errors import StateInvalid as StateInvalid
    from keepstep.checkpoint.errors import Superseded as Superseded
    from keepstep.checkpoint.local import LocalCheckpoints as LocalCheckpoints
    from keepstep.checkpoint.repository.repository import Commit as Commit
    from keepstep.checkpoint.repository.repository import Repository as Repository
    from keepstep.checkpoint.snapshot.client import SnapshotClient as SnapshotClient
    from keepstep.checkpoint.snapshot.control import SnapshotControl as SnapshotControl
    from keepstep.checkpoint.state.tree import Flat as Flat
    from keepstep.checkpoint.state.tree import flatten as flatten
    from keepstep.checkpoint.state.tree import unflatten as unflatten

_WHERE = {
    "SnapshotClient": "snapshot.client",
    "SnapshotControl": "snapshot.control",
    "Commit": "repository.repository",
    "Repository": "repository.repository",
    "CheckpointError": "errors",
    "SaveFailed": "errors",
    "SnapshotRefused": "errors",
    "StateInvalid": "errors",
    "Superseded": "errors",
    "LocalCheckpoints": "local",
    "Flat": "state.tree",
    "flatten": "state.tree",
    "unflatten": "state.tree",
}


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        from importlib import import_module

        return getattr(import_module(f"keepstep.checkpoint.{_WHERE[name]}"), name)
    raise AttributeError(f"module 'keepstep.checkpoint' has no attribute {name!r}")
