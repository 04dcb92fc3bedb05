"""Dependencies and mounts as one source of signals. Owns the rhythm of the looks; must not wait for what hangs."""

import asyncio
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from keepstep.adapters.dependencies import mounts
from keepstep.adapters.dependencies.declared import Dependency, Mount
from keepstep.adapters.dependencies.looks import Answer, look
from keepstep.adapters.dependencies.standing import Standing
from keepstep.adapters.probe import Probe, Probes
from keepstep.core.observation import Observation
from keepstep.ports import Outlet

_TOUCH = str(Path(__file__).with_name("touch.py"))
_SOON_S = 2.0


class DependencySource:
    """A loop for each that is declared: one that hangs does not hold up another."""

    name = "dependencies"

    def __init__(
        self, dependencies: Sequence[Dependency], watched: Sequence[Mount] = (), *, node: str = "",
        probes: Probes | None = None, touch: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """``touch``: the command that touches a mount; its path, and perhaps ``write``, are added."""
        self._dependencies = dependencies
        self._mounts = watched
        self._node = node
        self._probes = probes or Probes()
        self._touch = tuple(touch) or (sys.executable, "-I", "-S", _TOUCH)

    async def run(self, outlet: Outlet) -> None:
        if not self._dependencies and not self._mounts:
            outlet.coverage("absent", "no dependency and no mount is declared")
            return
        names = [one.name for one in self._dependencies] + [one.name for one in self._mounts]
        outlet.coverage("seen", ", ".join(names))
        async with asyncio.TaskGroup() as group:
            for dependency in self._dependencies:
                group.create_task(self._watch_dependency(dependency, outlet))
            for mount in self._mounts:
                group.create_task(self._watch_mount(mount, outlet))

    async def _watch_dependency(self, dependency: Dependency, outlet: Outlet) -> None:
        standing = Standing()
        part = f"dependency/{dependency.name}"
        clock = asyncio.get_running_loop().time
        while True:
            answer = await look(dependency, self._node)
            outlet.level(part, "latency_s", answer.duration_s)
            change = standing.look(answer.ok, answer.duration_s > dependency.slow_after_s, clock())
            if change is not None:
                outlet.observe(_dependency_seen(dependency, change, answer))
            await asyncio.sleep(_pause_s(dependency.pause_s, standing))

    async def _watch_mount(self, mount: Mount, outlet: Outlet) -> None:
        failing, hanging = Standing(), Standing(confirm=1)
        clock = asyncio.get_running_loop().time
        argv = [*self._touch, mount.path, *(["write"] if mount.write else [])]
        while True:
            found = mounts.file_system(mount.path, mounts.read_mountinfo())
            if mount.file_system and found.kind != mount.file_system:
                probe = Probe(outcome="failed", detail=f"{found.kind or 'nothing'} is mounted, not {mount.file_system}")
            else:
                probe = await self._probes.run(argv, mount.deadline_s, name=f"mount {mount.path}")
            part = _mount_part(mount, found)
            _mount_levels(part, probe, outlet)
            slow = probe.outcome == "ok" and probe.duration_s > mount.slow_after_s
            hung = hanging.look(probe.outcome != "hung", slow, clock())
            failed = failing.look(probe.outcome != "failed", False, clock()) if probe.outcome != "hung" else None
            for change, key in ((hung, "mount.hung"), (failed, "mount.failed")):
                if change is not None:
                    outlet.observe(_mount_seen(mount, found, _mount_key(change, key, found), probe))
            await asyncio.sleep(_pause_s(mount.every_s, failing))


def _pause_s(every_s: float, standing: Standing) -> float:
    """The nodes of a fleet shall not ask a service all at once; a look that is to be confirmed comes soon."""
    return min(every_s, _SOON_S) if standing.is_suspicious else every_s * random.uniform(0.9, 1.0)


def _dependency_seen(dependency: Dependency, change: str, answer: Answer) -> Observation:
    words = {
        "down": answer.detail,
        "slow": f"answers after {answer.duration_s:.2f} s; slow is more than {dependency.slow_after_s:g} s",
        "ok": f"answers again, after {answer.duration_s:.2f} s",
    }
    return Observation(
        signal=f"dependency.{change}",
        part=f"dependency/{dependency.name}",
        detail=f"{dependency.kind} {_without_secrets(dependency.url)}: {words[change]}"[:500],
        attributes={"kind": dependency.kind, "late": "yes" if answer.late else "no"},
        source="dependencies",
    )


def _without_secrets(url: str) -> str:
    """An address that may be written down: no user and no query, where a signature would stand."""
    scheme, found, rest = url.partition("://")
    if not found:
        return url
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"


def _mount_part(mount: Mount, found: mounts.FileSystem) -> str:
    """What hangs is the server, for all of its mounts and nodes at once; a local file system is this node's."""
    return f"dependency/{found.server}" if found.is_network else f"mount{mount.path}"


def _mount_key(change: str, key: str, found: mounts.FileSystem) -> str:
    if change != "down":
        return f"mount.{change}"
    return key if found.is_network or key == "mount.failed" else f"{key}.local"


def _mount_seen(mount: Mount, found: mounts.FileSystem, signal: str, probe: Probe) -> Observation:
    return Observation(
        signal=signal,
        part=_mount_part(mount, found),
        detail=f"{mount.path} ({found.kind or 'unknown'} {found.source}): "
        f"{probe.detail or f'answers after {probe.duration_s:.2f} s'}"[:500],
        attributes={"mount": mount.path, "file_system": found.kind, "probe": "mount"},
        source="dependencies",
    )


def _mount_levels(part: str, probe: Probe, outlet: Outlet) -> None:
    outlet.level(part, "latency_s", probe.duration_s)
    fields = probe.stdout.split()
    if probe.outcome == "ok" and len(fields) == 2:
        outlet.level(part, "free_share", float(fields[0]))
        outlet.level(part, "free_files_share", float(fields[1]))
