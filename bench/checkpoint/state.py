"""The state that is saved: parameters of a GPT in fp32 and both moments of AdamW, as torch tensors. 12 bytes a parameter."""

import math
from typing import Any

import torch

from keepstep.checkpoint import Flat, flatten

LAYERS = 16
VOCABULARY = 32_768
CONTEXT = 1024


def width_for(size_bytes: int) -> int:
    """The model width with which the state has about so many bytes: 12 x (12 layers width^2 + (vocabulary + context) width)."""
    a, b = 12 * LAYERS, VOCABULARY + CONTEXT
    return max(16, round((math.sqrt(b * b + 4 * a * size_bytes / 12) - b) / (2 * a) / 16) * 16)


def shapes(width: int) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {"wte": (VOCABULARY, width), "wpe": (CONTEXT, width)}
    for n in range(LAYERS):
        for name, out, inner in (("qkv", 3, 1), ("proj", 1, 1), ("up", 4, 1), ("down", 1, 4)):
            found[f"h{n}.{name}.weight"] = (out * width, inner * width)
            found[f"h{n}.{name}.bias"] = (out * width,)
        for name in ("ln1", "ln2"):
            found[f"h{n}.{name}.weight"] = found[f"h{n}.{name}.bias"] = (width,)
    found["ln.weight"] = found["ln.bias"] = (width,)
    return found


class State:
    """``groups`` is what a session saves: model and optimizer apart. About 600 tensors and 200 step counters."""

    def __init__(self, size_bytes: int) -> None:
        names = shapes(width_for(size_bytes))
        self.model = {name: torch.empty(shape).uniform_(-1, 1) for name, shape in names.items()}
        slots = {
            n: {
                "step": torch.tensor(1.0),
                "exp_avg": torch.empty(shape).uniform_(-1, 1),
                "exp_avg_sq": torch.empty(shape).uniform_(0, 1),
            }
            for n, shape in enumerate(names.values())
        }
        options = {"lr": 3e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "params": [*range(len(names))]}
        self.optim: dict[str, Any] = {"state": slots, "param_groups": [options]}
        self._flat: dict[str, Flat] = {}

    def tensors(self) -> list[torch.Tensor]:
        moments = [entry[name] for entry in self.optim["state"].values() for name in ("exp_avg", "exp_avg_sq")]
        return [*self.model.values(), *moments]

    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())

    def whole(self) -> dict[str, Any]:
        return {"model": self.model, "optim": self.optim}

    def keyed(self) -> dict[str, Any]:
        """As torch's distributed checkpoint wants it: string keys only."""
        state = {str(n): entry for n, entry in self.optim["state"].items()}
        return {"model": self.model, "optim": {"state": state}}

    def step(self) -> None:
        """Change something in every megabyte, so that no chunk is as it was: what an optimizer step does, at no cost."""
        with torch.no_grad():
            for tensor in self.tensors():
                tensor.view(-1)[:: 1 << 18].add_(1e-3)
            for entry in self.optim["state"].values():
                entry["step"].add_(1)

    def flat(self) -> dict[str, Flat]:
        """Flattened as a session does it at every step boundary."""
        for name, tree in self.whole().items():
            self._flat[name] = flatten(tree, previous=self._flat.get(name))
        return self._flat
