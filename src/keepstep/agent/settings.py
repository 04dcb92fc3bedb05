"""What the agent is told at its start, and where its files lie. Read once, in wiring; owns no behaviour."""

import os
from dataclasses import dataclass, field
from typing import Any

from keepstep.adapters.dependencies import Dependency, Mount
from keepstep.adapters.host import Service
from keepstep.adapters.local.holds import agent_dir
from keepstep.core.ids import NodeId, Session


@dataclass(frozen=True, kw_only=True)
class DeclaredDevice:
    """A device that launchers give to ranks, and by which names sources know it. Raises ValueError without a name."""

    slot: int
    names: tuple[str, ...] = ()
    """``gpu/0000:9b:00``, ``gpu/GPU-…``, ``gpu/3``."""
    serial: str = ""
    model: str = ""
    firmware: str = ""

    def __post_init__(self) -> None:
        if self.slot < 0:
            raise ValueError(f"slot is {self.slot}; slots count from 0")
        wrong = next((name for name in self.names if not name.partition("/")[2]), None)
        if wrong is not None or not self.names:
            raise ValueError(f"names holds {wrong!r}; write kind/name, for example gpu/0000:9b:00")


@dataclass(frozen=True, kw_only=True)
class Settings:
    node: NodeId
    session: Session
    server: str = ""
    """Addresses with commas between them; empty: what the server of the state directory has written down."""
    state_dir: str
    domains: dict[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] | None = None
    """None: all that exist."""
    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Of single sources, by name."""
    dependencies: tuple[Dependency, ...] = ()
    mounts: tuple[Mount, ...] = ()
    services: tuple[Service, ...] = ()
    devices: tuple[DeclaredDevice, ...] = ()
    lease_s: float = 10.0
    config: str = ""
    """The configuration file, for messages."""

    @property
    def own_dir(self) -> str:
        """Of this node's agents, one after another: holds, and how far logs were read."""
        return agent_dir(self.state_dir, self.node)

    def file(self, name: str) -> str:
        return os.path.join(self.own_dir, name)
