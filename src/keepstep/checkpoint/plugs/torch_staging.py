"""Copies of a state_dict in memory that is used again, for torch's ``async_save``. Owns that memory, and when it is free."""

import copy
from collections import deque
from typing import Any

import numpy as np
import torch


class _Buffers:
    """CPU tensors for one copy of a state, in the order in which its tensors are met."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._at = 0

    def start(self) -> None:
        self._at = 0

    def next(self, like: torch.Tensor) -> torch.Tensor:
        at, self._at = self._at, self._at + 1
        if at == len(self._tensors):
            self._tensors.append(torch.empty(0))
        found = self._tensors[at]
        if found.shape != like.shape or found.dtype != like.dtype:
            found = self._tensors[at] = torch.empty(like.shape, dtype=like.dtype)
        return found


class Staging:
    """Makes copies that later changes of the state do not reach.

    A copy's memory is used again once :meth:`written` was called for it, or for a later copy: a save that fails keeps its
    memory from nobody. Copies are written in the order in which they are made.
    """

    def __init__(self) -> None:
        self._free: list[_Buffers] = []
        self._out: deque[_Buffers] = deque()

    def copy(self, state: Any) -> Any:
        """Returns when the last byte is copied. DTensors stay DTensors, with their part on the CPU."""
        buffers = self._free.pop() if self._free else _Buffers()
        buffers.start()
        sources: list[torch.Tensor] = []
        targets: list[torch.Tensor] = []
        copied = _copied(state, buffers, sources, targets)
        with torch.no_grad():
            if targets:
                torch._foreach_copy_(targets, sources)
        self._out.append(buffers)
        return copied

    def written(self) -> None:
        """The oldest copy is not needed any more."""
        if self._out:
            self._free.append(self._out.popleft())

    def close(self) -> None:
        self._free.clear()
        self._out.clear()


def _copied(node: Any, buffers: _Buffers, sources: list[torch.Tensor], targets: list[torch.Tensor]) -> Any:
    if isinstance(node, torch.Tensor):
        return _copied_tensor(node, buffers, sources, targets)
    if isinstance(node, dict):
        return {key: _copied(value, buffers, sources, targets) for key, value in node.items()}
    if type(node) in (list, tuple):
        return type(node)(_copied(value, buffers, sources, targets) for value in node)
    return node.copy() if isinstance(node, np.ndarray) else copy.deepcopy(node)


def _copied_tensor(
    tensor: torch.Tensor, buffers: _Buffers, sources: list[torch.Tensor], targets: list[torch.Tensor]
) -> torch.Tensor:
    if hasattr(tensor, "__tensor_flatten__"):
        # torch's protocol for tensors that hold others; through from_local() a part would go back to its device.
        names, context = tensor.__tensor_flatten__()
        held = {name: getattr(tensor, name) for name in names}
        inner = {
            # What else a tensor holds (a mesh) is not state.
            name: _copied_tensor(each, buffers, sources, targets) if isinstance(each, torch.Tensor) else each
            for name, each in held.items()
        }
        made: torch.Tensor = type(tensor).__tensor_unflatten__(inner, context, tensor.size(), tensor.stride())  # type: ignore[attr-defined]
        return made
    target = buffers.next(tensor)
    sources.append(tensor.detach())
    targets.append(target)
    return target
