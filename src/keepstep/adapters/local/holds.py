"""Resources of a node that must take no work, in one file for each: written by the node's agent, read by its launchers.

Owns the files and their form: ``device%2Fn0%2F3`` holds JSON with ``resource`` and ``reason``. Must not lift a hold by itself.
"""

import os

import msgspec

from keepstep.core.ids import NodeId, ResourceId


class Held(msgspec.Struct, frozen=True, kw_only=True):
    resource: str
    reason: str


def agent_dir(state_dir: str, node: NodeId) -> str:
    """Where the agent of a node keeps its files, unless a launcher is told another place."""
    return os.path.join(state_dir, "agent", node)


class Holds:
    """Survives the agent. ``directory`` is the agent's, see ``agent_dir``."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "holds")

    def hold(self, resource: ResourceId, reason: str) -> None:
        """Durable when it returns. Raises OSError."""
        os.makedirs(self._directory, mode=0o700, exist_ok=True)
        path = self._path(resource)
        fresh = f"{path}.new"
        with open(fresh, "wb") as file:
            file.write(msgspec.json.encode(Held(resource=resource, reason=reason)))
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        self._sync()

    def lift(self, resource: ResourceId) -> None:
        """Raises OSError; that there was none is well."""
        try:
            os.unlink(self._path(resource))
        except FileNotFoundError:
            return
        self._sync()

    def reason(self, resource: ResourceId) -> str | None:
        """Why a resource is held; None where it is not. A file that cannot be read holds as well."""
        try:
            with open(self._path(resource), "rb") as file:
                return msgspec.json.decode(file.read(65_536), type=Held).reason
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            return f"its hold cannot be read: {error}"

    def _path(self, resource: ResourceId) -> str:
        return os.path.join(self._directory, resource.replace("%", "%25").replace("/", "%2F"))

    def _sync(self) -> None:
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
