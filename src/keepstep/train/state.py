"""The registered objects: their state out, and a checked state in. Owns the order of a restore; knows no storage."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from keepstep.checkpoint.state import generators
from keepstep.checkpoint.state.boxes import Extent
from keepstep.checkpoint.state.shards import fit
from keepstep.checkpoint.state.tree import flatten
from keepstep.train.errors import DataStateInvalid, RestoreFailed, SessionError
from keepstep.train.readers import ModuleReader, OptimizerReader

RANK_GROUP = "rank"
"""What belongs to one rank alone: step, random numbers, data position. Others are often equal on all ranks."""
_WRAPPERS = frozenset({"DistributedDataParallel", "DataParallel", "OptimizedModule"})


class Registered:
    """The objects of one session by name."""

    def __init__(self, objects: Mapping[str, Any], per_rank: Sequence[str] = ()) -> None:
        """``per_rank``: names of state, or of parts of it, that every rank has for itself. Raises SessionError for an object
        whose state cannot be taken, and for a name that nothing has."""
        unknown = [name for name in per_rank if name.partition(".")[0] not in objects]
        if unknown:
            raise SessionError(f"per_rank names {_listed(unknown)}, which the session does not register")
        self._per_rank = tuple(per_rank)
        self._groups: dict[str, Any] = {}
        self._data: dict[str, Any] = {}
        for name, thing in objects.items():
            _check_object(name, thing)
            if _is_data_source(thing):
                self._data[name] = thing
            else:
                self._groups[name] = unwrap(thing)
        self._readers = {name: _reader_of(thing) for name, thing in self._groups.items()}

    @property
    def data_sources(self) -> Mapping[str, Any]:
        return self._data

    def capture(self, step: int) -> dict[str, Any]:
        """Group name -> state, a tree or flat already, of live references. Copy it before the next step."""
        groups: dict[str, Any] = {}
        param_groups: dict[str, Any] = {}
        for name, reader in self._readers.items():
            try:
                if isinstance(reader, OptimizerReader):
                    groups[name], param_groups[name] = reader.read()
                else:
                    groups[name] = reader.read() if isinstance(reader, ModuleReader) else reader.state_dict()
            except TypeError as error:
                raise TypeError(f"in the state of {name}: {error}") from error
        groups[RANK_GROUP] = {
            "step": step,
            "param_groups": param_groups,
            "rng": generators.capture(),
            "data": {name: source.state_dict() for name, source in self._data.items()},
        }
        return groups

    def parts(self) -> dict[str, dict[str, Extent]]:
        """Group -> path -> the part that this rank has of each sharded tensor, as far as that is known before a restore."""
        parts: dict[str, dict[str, Extent]] = {}
        for name, thing in self._groups.items():
            if _is_module(thing):
                parts[name] = {each.path: each.extent for each in flatten(thing.state_dict()).sharded}
        return parts

    def per_rank(self) -> list[str]:
        """``group`` or ``group.path`` of what may differ from rank to rank. Data parallelism leaves buffers (running
        statistics) different, and those of any rank will do."""
        modules = [(name, thing) for name, thing in self._groups.items() if _is_module(thing)]
        buffers = [f"{name}.{path}" for name, thing in modules for path, _ in thing.named_buffers()]
        return [*self._per_rank, *buffers]

    def fit(self, groups: Mapping[str, Any]) -> dict[str, Any]:
        """The same groups, with parts of sharded tensors as the live objects have them. Raises StateInvalid."""
        fitted = dict(groups)
        for name, thing in self._groups.items():
            if name in groups and _is_module(thing):
                fitted[name] = fit(groups[name], thing.state_dict())
            elif name in groups and _is_optimizer(thing):
                fitted[name] = fit(groups[name], _like_parameters(thing, groups[name]))
        return fitted

    def check(self, groups: Mapping[str, Any]) -> None:
        """Raises RestoreFailed unless ``groups`` fit the live objects; changes nothing."""
        saved = groups.keys() - {RANK_GROUP}
        if saved != self._groups.keys():
            raise RestoreFailed(
                f"the saved state has {_listed(saved)}, the session registers {_listed(self._groups)}; "
                "register the same names, or start in a new checkpoint_dir"
            )
        rank = groups.get(RANK_GROUP)
        if not isinstance(rank, dict) or not {"step", "rng", "data", "param_groups"} <= rank.keys():
            raise RestoreFailed("the saved state has no step, random numbers and data position: no session saved it")
        if rank["data"].keys() != self._data.keys():
            raise RestoreFailed(
                f"the saved state has the data positions {_listed(rank['data'])}, the session registers "
                f"{_listed(self._data)}; register the same names"
            )
        for name, thing in self._groups.items():
            _check_fit(name, thing, _whole(name, groups))
        for name, source in self._data.items():
            if hasattr(source, "check_state"):
                try:
                    source.check_state(rank["data"][name])
                except DataStateInvalid as error:
                    raise RestoreFailed(f"{name}: {error}") from error

    def apply(self, groups: Mapping[str, Any]) -> None:
        """Load every object, after `check`. The random numbers are left to the caller: they come last."""
        loads = [(name, thing, _whole(name, groups)) for name, thing in self._groups.items()]
        loads += [(name, source, groups[RANK_GROUP]["data"][name]) for name, source in self._data.items()]
        for name, thing, state in loads:
            try:
                thing.load_state_dict(state)
            except Exception as error:
                raise RestoreFailed(f"{name}.load_state_dict refused the saved state: {error}") from error


def _like_parameters(optimizer: Any, saved: Any) -> Any:
    """What stands in an optimizer's state before its first step: for every tensor of a parameter's shape, the parameter."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    states = saved.get("state", {}) if isinstance(saved, Mapping) else {}
    return {
        "state": {
            place: {
                name: parameters[place]
                for name, value in state.items()
                if place < len(parameters) and tuple(getattr(value, "shape", ())) == tuple(parameters[place].shape)
            }
            for place, state in states.items()
            if isinstance(place, int) and isinstance(state, Mapping)
        }
    }


def _whole(name: str, groups: Mapping[str, Any]) -> Any:
    """The state of one object as its ``load_state_dict`` takes it."""
    param_groups = groups[RANK_GROUP]["param_groups"]
    return {**groups[name], "param_groups": param_groups[name]} if name in param_groups else groups[name]


def unwrap(thing: Any) -> Any:
    """The module inside DDP and torch.compile wrappers, so that names do not depend on how it is run."""
    while _is_module(thing) and type(thing).__name__ in _WRAPPERS:
        thing = thing._orig_mod if hasattr(thing, "_orig_mod") else thing.module
    return thing


def _is_module(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.nn.Module)


def _is_optimizer(thing: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.optim.Optimizer)


def _reader_of(thing: Any) -> Any:
    if _is_module(thing):
        return ModuleReader(thing)
    return OptimizerReader(thing) if _is_optimizer(thing) else thing


def _is_data_source(thing: Any) -> bool:
    """Samplers and loaders: what one iterates over and what is not a module (a ModuleList can be iterated too)."""
    return hasattr(type(thing), "__iter__") and not _is_module(thing) and not isinstance(thing, Mapping)


def _check_object(name: str, thing: Any) -> None:
    if name == RANK_GROUP:
        raise SessionError(f"the name {RANK_GROUP!r} is taken by the session; call it something else")
    absent = [method for method in ("state_dict", "load_state_dict") if not callable(getattr(thing, method, None))]
    if not absent:
        return
    advice = "give it both, or wrap it in an object that has them"
    if type(thing).__name__ == "DataLoader":
        advice = f"wrap it: {name} = keepstep.resumable({name})"
    elif type(thing).__name__ in {"DistributedSampler", "RandomSampler", "SequentialSampler"}:
        advice = "use keepstep.ResumableSampler in its place"
    raise SessionError(f"{name} ({type(thing).__name__}) has no {' and no '.join(absent)}; {advice}")


def _check_fit(name: str, thing: Any, state: Any) -> None:
    if _is_module(thing):
        _check_module(name, thing.state_dict(), state)
    elif _is_optimizer(thing):
        _check_optimizer(name, thing, state)


def _check_module(name: str, live: Mapping[str, Any], saved: Any) -> None:
    if not isinstance(saved, Mapping):
        raise RestoreFailed(f"{name}: the saved state is no state of a module")
    if live.keys() != saved.keys():
        raise RestoreFailed(
            f"{name}: only in the saved state: {_listed(saved.keys() - live.keys())}; only in the model: "
            f"{_listed(live.keys() - saved.keys())}; resume with the model that was saved, or use a new checkpoint_dir"
        )
    for key, value in live.items():
        for what in ("shape", "dtype"):
            wanted, found = getattr(value, what, None), getattr(saved[key], what, None)
            if wanted != found:
                raise RestoreFailed(
                    f"{name}.{key}: the saved {what} is {_shown(found)}, the model has {_shown(wanted)}; resume with "
                    "the model that was saved, or use a new checkpoint_dir"
                )


def _check_optimizer(name: str, optimizer: Any, saved: Any) -> None:
    if not isinstance(saved, Mapping) or not {"state", "param_groups"} <= saved.keys():
        raise RestoreFailed(f"{name}: the saved state is no state of an optimizer")
    wanted = [len(group["params"]) for group in optimizer.param_groups]
    found = [len(group["params"]) for group in saved["param_groups"]]
    if wanted != found:
        raise RestoreFailed(
            f"{name}: the saved parameter groups have {found} parameters, the optimizer's have {wanted}; build the "
            "optimizer over the same parameters in the same groups"
        )


def _shown(value: Any) -> str:
    return str(tuple(value)) if isinstance(value, tuple) else str(value)


def _listed(names: Any) -> str:
    ordered = sorted(map(str, names))
    shown = ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")
    return shown or "nothing"
