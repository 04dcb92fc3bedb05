"""This node's own gate: resources that it refuses to work on, kept on disk. Owns the file; must not lift a hold itself.

What the node's agent holds is refused as well: its files are read whenever work is to start.

The control plane places around a held device as well; this gate is there for the order that comes late or wrong.
"""

import json
import os

from keepstep.adapters.local.holds import Holds, agent_dir
from keepstep.core.ids import NodeId, ResourceId, device_resource, node_resource


class Quarantined:
    """Survives the launcher. One file per node of a state directory."""

    def __init__(self, state_dir: str, node: NodeId, agents_dir: str = "") -> None:
        """``agents_dir``: where the node's agent keeps its files, if not in the state directory."""
        self._node = node
        self._agents = Holds(agents_dir or agent_dir(state_dir, node))
        self._path = os.path.join(state_dir, "quarantine", f"{node}.json")
        self._held: dict[str, str] = {}
        if os.path.exists(self._path):
            with open(self._path, encoding="utf-8") as file:
                self._held = {str(resource): str(reason) for resource, reason in json.load(file).items()}

    def hold(self, resource: ResourceId, reason: str) -> None:
        """Durable when it returns. Raises OSError."""
        self._held[resource] = reason
        self._save()

    def lift(self, resource: ResourceId) -> None:
        if self._held.pop(resource, None) is not None:
            self._save()

    def refusal(self, slots: list[int]) -> str:
        """Why work on these slots is refused; empty where it is not."""
        for resource in (node_resource(self._node), *(device_resource(self._node, slot) for slot in slots)):
            if resource in self._held:
                return f"{resource} is quarantined here: {self._held[resource]}"
            if (reason := self._agents.reason(resource)) is not None:
                return f"{resource} is held by the agent of this node: {reason}"
        return ""

    def _save(self) -> None:
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        fresh = f"{self._path}.new"
        with open(fresh, "w", encoding="utf-8") as file:
            json.dump(self._held, file, sort_keys=True)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self._path)
        folder = os.open(os.path.dirname(self._path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
