"""Which sources there are, by name. Owns their making; an adapter is imported only when its source is wanted."""

import importlib
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from keepstep.adapters.dependencies import DependencySource
from keepstep.adapters.host import HostSource
from keepstep.adapters.host.source import boot_before
from keepstep.adapters.kmsg import KernelLogSource
from keepstep.adapters.kmsg.position import Position
from keepstep.agent.settings import Settings
from keepstep.ports import Outlet, Source

log = logging.getLogger("keepstep.agent")


@dataclass(frozen=True)
class Surroundings:
    """What a source may be given beside its own options."""

    settings: Settings
    boot_id: str
    keeps: bool
    """It may write down what it saw, for the next agent."""
    is_settled: Callable[[], bool]
    """All that was seen so far is safe with the server."""


Make = Callable[[Surroundings, dict[str, Any]], Source]


def _kmsg(around: Surroundings, options: dict[str, Any]) -> Source:
    path = options.get("path", "")
    if not isinstance(path, str):
        raise ValueError(f"[source.kmsg] path is {path!r}; write text")
    position = Position.load(around.settings.file("kmsg.position"), around.boot_id)
    return KernelLogSource(path=path, position=position, may_keep=around.is_settled)


def _host(around: Surroundings, options: dict[str, Any]) -> Source:
    try:
        before = boot_before(around.settings.file("boot"), keep=around.keeps)
    except OSError as error:
        # A disk that is full is one more thing to be watched, and no reason not to watch.
        log.warning("the boot cannot be written down: %s", error)
        before = ""
    return HostSource(around.settings.services, **options, boot_before=before)


def _dependencies(around: Surroundings, options: dict[str, Any]) -> Source:
    settings = around.settings
    return DependencySource(settings.dependencies, settings.mounts, **options, node=settings.node)


def _polled(place: str) -> Make:
    """A watch of kernel files, at the rhythm that its module gives."""

    def make(around: Surroundings, options: dict[str, Any]) -> Source:
        module_name, _, attribute = place.partition(":")
        module = importlib.import_module(module_name)
        watch = getattr(module, attribute)(**options)
        polled: Source = importlib.import_module("keepstep.adapters.sysfs.watching").Polled(watch, module.PERIOD_S)
        return polled

    return make


def _ports(around: Surroundings, options: dict[str, Any]) -> Source:
    rails = options.get("rails", [])
    if not isinstance(rails, list) or not all(isinstance(name, str) for name in rails):
        raise ValueError(f"[source.ports] rails is {rails!r}; write a list of adapters, for example mlx5_0")
    return _polled("keepstep.adapters.sysfs.ports:PortWatch")(around, {"rails": frozenset(rails)})


def _space(around: Surroundings, options: dict[str, Any]) -> Source:
    """The root, shared memory, and what is declared."""
    watched = dict.fromkeys([*_ALWAYS_WATCHED, *(mount.path for mount in around.settings.mounts)])
    source: Source = importlib.import_module("keepstep.adapters.disk.space").SpaceSource(tuple(watched), **options)
    return source


_ALWAYS_WATCHED = ("/", "/dev/shm")
_OPTIONS: dict[str, tuple[str, ...]] = {"kmsg": ("path",), "ports": ("rails",)}
_OWN: dict[str, Make] = {
    "kmsg": _kmsg,
    "host": _host,
    "dependencies": _dependencies,
    "ports": _ports,
    "pci": _polled("keepstep.adapters.sysfs.pci:PciWatch"),
    "edac": _polled("keepstep.adapters.sysfs.edac:EdacWatch"),
    "thermal": _polled("keepstep.adapters.sysfs.thermal:ThermalWatch"),
    "md": _polled("keepstep.adapters.disk.md:ArrayWatch"),
    "space": _space,
}  # fmt: skip
_FURTHER: dict[str, str] = {
    "nvml": "keepstep.adapters.nvml.source:NvmlSource",
    "amd": "keepstep.adapters.amd.source:AmdSource",
    "exporter": "keepstep.adapters.exporter.source:ExporterSource",
    "smart": "keepstep.adapters.disk.smart:SmartSource",
}
"""Name -> ``module:class`` of adapters that take their options and nothing else."""

NAMES: tuple[str, ...] = (*_OWN, *_FURTHER)


class _Missing:
    """Stands for a source whose adapter is not installed."""

    def __init__(self, name: str, why: str) -> None:
        self.name = name
        self._why = why

    async def run(self, outlet: Outlet) -> None:
        outlet.coverage("absent", self._why)


def make(name: str, around: Surroundings) -> Source:
    """Raises ValueError for a name or an option that there is not."""
    if name not in NAMES:
        raise ValueError(f"there is no source {name!r}; there are {', '.join(NAMES)}")
    options = around.settings.options.get(name, {})
    if name in _OWN:
        _check(name, options, _OPTIONS.get(name, ()))
        return _OWN[name](around, options)
    module, _, attribute = _FURTHER[name].partition(":")
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        return _Missing(name, f"{error.name} is not installed")
    wanted = inspect.signature(factory).parameters
    _check(name, options, tuple(wanted))
    for key, value in options.items():
        _check_kind(f"[source.{name}] {key}", value, wanted[key].annotation)
    try:
        source: Source = factory(**options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"[source.{name}] {error}") from error
    return source


def _check(name: str, options: dict[str, Any], keys: Sequence[str]) -> None:
    extra = next((key for key in options if key not in keys), None)
    if extra is not None:
        there = f"there may stand {', '.join(keys)}" if keys else "it takes no options"
        raise ValueError(f"[source.{name}] has no key {extra!r}; {there}")


def _check_kind(where: str, value: object, kind: object) -> None:
    kinds: dict[object, tuple[str, tuple[type, ...]]] = {
        float: ("a number", (int, float)), int: ("a whole number", (int,)), str: ("text", (str,)),
        bool: ("true or false", (bool,)),
    }  # fmt: skip
    words, takes = kinds.get(kind, ("", (object,)))
    if not isinstance(value, takes) or (isinstance(value, bool) and kind in (int, float)):
        raise ValueError(f"{where} is {value!r}; write {words}")


def check_options(settings: Settings) -> None:
    """Raises ValueError for options of a source that there is not."""
    extra = next((name for name in settings.options if name not in NAMES), None)
    if extra is not None:
        raise ValueError(
            f"{settings.config}: [source.{extra}]: there is no source {extra!r}; there are {', '.join(NAMES)}"
        )
