"""Space, inodes and responsiveness of the mounts that a user declares. Judges use as the reader of ``df`` does."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from keepstep.adapters.probe import Probes
from keepstep.adapters.sysfs.deltas import Standing
from keepstep.adapters.sysfs.watching import CLOCK
from keepstep.core.observation import Observation
from keepstep.evidence.storage import filesystems
from keepstep.ports import Outlet

PERIOD_S = 60.0
TIMEOUT_S = 10.0
_QUESTION = (
    "import json,os,sys\n"
    "s=os.statvfs(sys.argv[1])\n"
    "print(json.dumps([s.f_blocks,s.f_bfree,s.f_bavail,s.f_files,s.f_ffree,s.f_flag&os.ST_RDONLY]))\n"
)


class SpaceSource:
    """``question`` may be any program that prints what ``_QUESTION`` prints for the path that it is given last."""

    name = "space"

    def __init__(
        self, mounts: Sequence[str], proc: Path = Path("/proc"),
        question: tuple[str, ...] = (sys.executable, "-I", "-S", "-c", _QUESTION),
        period_s: float = PERIOD_S, timeout_s: float = TIMEOUT_S,
    ) -> None:  # fmt: skip
        self._mounts, self._proc, self._question = tuple(mounts), proc, question
        self._period_s, self._timeout_s = period_s, timeout_s
        self._probes, self._told = Probes(), Standing()
        self._clock: Callable[[], float] = time.monotonic

    async def run(self, outlet: Outlet) -> None:
        if not self._mounts:
            outlet.coverage("absent", "no mount is declared")
            return
        outlet.coverage("seen", ", ".join(self._mounts))
        while True:
            kinds = self._kinds()
            await asyncio.gather(*(self._look(mount, *kinds.get(mount, ("", "")), outlet) for mount in self._mounts))
            await asyncio.sleep(self._period_s)

    def _kinds(self) -> dict[str, tuple[str, str]]:
        """Mount → (source, type). The table is the kernel's own: reading it asks no file server."""
        try:
            lines = (self._proc / "self/mounts").read_text(errors="replace").splitlines()
        except OSError:
            return {}
        return {fields[1]: (fields[0], fields[2]) for fields in (line.split(" ") for line in lines) if len(fields) > 3}

    async def _look(self, mount: str, source: str, kind: str, outlet: Outlet) -> None:
        answer = await self._probes.run((*self._question, mount), self._timeout_s, name=mount)
        if self._told.begins(f"hung {mount}", answer.outcome == "hung"):
            shared = filesystems.shared(source, kind)
            detail = f"{mount} ({source or 'unknown'}) has not answered within {self._timeout_s:g} s"
            part = filesystems.dependency(source) if shared else f"mount/{mount}"
            outlet.observe(self._seen("mount.stale" if shared else "probe.hung", part, detail, probe=f"space {mount}"))
        if answer.outcome != "ok":
            return
        try:
            blocks, free, available, files, files_free, read_only = (int(x) for x in json.loads(answer.stdout))
        except (ValueError, TypeError):
            return
        used = blocks - free
        share = -(-100 * used // (used + available)) if used + available > 0 else 0
        inodes = -(-100 * (files - files_free) // files) if files > 0 else 0
        outlet.level(f"mount/{mount}", "used_percent", float(share))
        # A file system in memory that somebody declares is to have space, unlike those that are full by their nature.
        source, kind = ("memory", "") if kind == "tmpfs" else (source, kind)
        self._tell(filesystems.judge_use(source, kind, mount, share, inodes=False), f"space {mount}", outlet)
        self._tell(filesystems.judge_use(source, kind, mount, inodes, inodes=True), f"inodes {mount}", outlet)
        if self._told.begins(f"read-only {mount}", bool(read_only)):
            outlet.observe(self._seen("mount.read_only", f"mount/{mount}", f"{mount} is read-only"))

    def _tell(self, found: tuple[str, str, str] | None, condition: str, outlet: Outlet) -> None:
        for signal in ("space.full", "space.full.shared", "space.low"):
            if (
                self._told.begins(f"{condition} {signal}", found is not None and found[0] == signal)
                and found is not None
            ):
                outlet.observe(self._seen(*found))

    def _seen(self, signal: str, part: str, detail: str, **attributes: str) -> Observation:
        return Observation(
            signal=signal, part=part, detail=detail[:500], attributes=attributes, source=self.name,
            at_s=self._clock(), clock=CLOCK,
        )  # fmt: skip
