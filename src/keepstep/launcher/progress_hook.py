"""Progress of scripts that do not import keepstep. Owns one hook: each optimizer step of torch is a tick of the cell.

Must not import torch: it waits for the script to do so. A keepstep session that claims the cell silences it.
"""

import importlib.abc
import importlib.machinery
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from keepstep.wire import progress
from keepstep.wire.progress import ProgressCell

_WATCHED = "torch.optim.optimizer"


class OptimizerTicks:
    """Counts steps of the first optimizer that steps; the others only show life."""

    def __init__(self, cell: ProgressCell) -> None:
        self._cell = cell
        self._leader: int | None = None
        self._steps = 0
        self._last_ns = time.monotonic_ns()

    def install(self) -> None:
        """Now if torch's optimizers are loaded, else as soon as they are."""
        if _WATCHED in sys.modules:
            self.hook_into(sys.modules[_WATCHED])
        else:
            sys.meta_path.insert(0, _AfterImport(self))

    def hook_into(self, module: ModuleType) -> None:
        module.register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: object, args: Any, kwargs: Any) -> None:
        if progress.claimed_by_session:
            return
        if self._leader is None:
            self._leader = id(optimizer)
            self._cell.enter("step")
        if self._leader != id(optimizer):
            self._cell.heartbeat()
            return
        now_ns = time.monotonic_ns()
        self._steps += 1
        self._cell.step_done(self._steps, now_ns - self._last_ns)
        self._last_ns = now_ns


class _AfterImport(importlib.abc.MetaPathFinder):
    """Lets the ordinary finders find the watched module, and hooks into it once it has run."""

    def __init__(self, ticks: OptimizerTicks) -> None:
        self._ticks = ticks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _WATCHED:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Hooked(spec.loader, self._ticks)
        return spec


class _Hooked(importlib.abc.Loader):
    def __init__(self, loader: Any, ticks: OptimizerTicks) -> None:
        self._loader = loader
        self._ticks = ticks

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        created: ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # Others (inspect, linecache) ask the module's spec for its true loader.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._ticks.hook_into(module)
