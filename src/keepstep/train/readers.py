"""Reads the state of modules and optimizers at every step at little cost. Owns the shortcuts and the proof that they hold.

Taking a state apart anew costs 0.4 ms for a small transformer, at every step. What a reader found once it keeps, and each
step asks only whether the same objects are still there, with the same shapes: ``load_state_dict`` of an optimizer, or a
script that assigns a buffer, replaces tensors, and a stale reference would save the old state for ever after.
Whatever takes part in making its own state (hooks, extra state, overridden methods) gets no shortcut.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from keepstep.checkpoint.state.tree import Flat, flatten

_MODULE_METHODS = ("state_dict", "_save_to_state_dict", "get_extra_state")
_MODULE_HOOKS = ("_state_dict_hooks", "_state_dict_pre_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")


class _Proof:
    """That containers hold the very objects that they held before, and tensors have the shapes that they had."""

    def __init__(self, containers: Iterable[dict[Any, Any]], tensors: list[Any]) -> None:
        found = list(containers)
        self._empty = [each for each in found if not each]
        self._seen = [(each, tuple(each), tuple(map(id, each.values()))) for each in found if each]
        # Held, so that no id in the proof can become that of a newer object.
        self._held = [tuple(each.values()) for each, _, _ in self._seen]
        self._tensors = tensors
        self._dtensors = [value for held in self._held for value in held if hasattr(value, "_local_tensor")]
        # Another local tensor may be put into the same object.
        self._locals = [each._local_tensor for each in self._dtensors]
        self._shapes, self._dtypes = self._look()

    def holds(self) -> bool:
        if any(self._empty):
            return False
        for each, keys, ids in self._seen:
            if len(each) != len(keys) or tuple(map(id, each.values())) != ids or tuple(each) != keys:
                return False
        if any(each._local_tensor is not local for each, local in zip(self._dtensors, self._locals, strict=True)):
            return False
        return self._look() == (self._shapes, self._dtypes)

    def _look(self) -> tuple[list[Any], list[Any]]:
        return [tensor.shape for tensor in self._tensors], [tensor.dtype for tensor in self._tensors]


class ModuleReader:
    """The state of one module."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._flat: Flat | None = None
        self._proof: _Proof | None = None

    def read(self) -> Any:
        """The state as a Flat where nothing changed its layout, else as a tree."""
        if self._flat is not None and self._proof is not None and self._proof.holds():
            return self._flat
        self._flat = self._proof = None
        if not _plain_module(self._module):
            return self._module.state_dict()
        self._flat = flatten(self._module.state_dict(keep_vars=True))
        self._proof = _Proof(_containers(self._module), self._flat.leaves)
        return self._flat


class OptimizerReader:
    """The state of one torch optimizer: tensors here, hyperparameters apart, because a scheduler changes those."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._flat: Flat | None = None
        self._proof: _Proof | None = None
        self._order: list[list[int]] = []
        self._state: Any = None
        """``load_state_dict`` puts another one in its place, and what is known of this one would hold for ever."""

    def read(self) -> tuple[Any, list[dict[str, Any]]]:
        """(per-parameter state as a Flat or a tree, parameter groups as ``state_dict`` gives them)."""
        proof = self._proof
        same = self._optimizer.state is self._state and self._places() == self._order
        if same and self._flat is not None and proof is not None and proof.holds():
            return self._flat, _packed_groups(self._optimizer.param_groups)
        self._flat = self._proof = None
        state = dict(self._optimizer.state_dict())
        groups = state.pop("param_groups")
        if not _plain_optimizer(self._optimizer, state):
            return state, groups
        self._flat = flatten(state)
        self._proof = _Proof([self._optimizer.state, *self._optimizer.state.values()], self._flat.leaves)
        self._order, self._state = self._places(), self._optimizer.state
        return self._flat, groups

    def _places(self) -> list[list[int]]:
        # Parameters are saved by their place in the groups; a group added or changed gives a place another meaning.
        return [list(map(id, group["params"])) for group in self._optimizer.param_groups]


def _packed_groups(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    packed, begin = [], 0
    for group in groups:
        end = begin + len(group["params"])
        packed.append({**group, "params": list(range(begin, end))})
        begin = end
    return packed


def _plain_module(module: Any) -> bool:
    import torch

    return all(
        all(getattr(type(part), name) is getattr(torch.nn.Module, name) for name in _MODULE_METHODS)
        and not any(getattr(part, hooks) for hooks in _MODULE_HOOKS)
        for part in module.modules()
    )


def _containers(module: Any) -> Iterator[dict[str, Any]]:
    for part in module.modules():
        yield from (part._modules, part._parameters, part._buffers, *(getattr(part, hooks) for hooks in _MODULE_HOOKS))


def _plain_optimizer(optimizer: Any, state: dict[str, Any]) -> bool:
    """Only tensors per parameter, one state per parameter, and nobody who changes what state_dict returns."""
    import torch

    return (
        type(optimizer).state_dict is torch.optim.Optimizer.state_dict
        and not any(getattr(optimizer, hooks) for hooks in _OPTIMIZER_HOOKS)
        and state.keys() == {"state"}
        and len(state["state"]) == len(optimizer.state)
        and all(isinstance(value, torch.Tensor) for each in state["state"].values() for value in each.values())
    )
