"""The state of every random number generator of this process. Owns nothing; reads and sets what the libraries own.

Covers Python's ``random``, numpy's global generator, torch's CPU generator and the current CUDA device's where CUDA is in
use already. A generator that a program made itself is state of the program.
"""

import random
import sys
from array import array
from typing import Any

import numpy as np


def capture() -> dict[str, Any]:
    """A tree of plain values and arrays; takes about 0.1 ms, most of it numpy's."""
    version, words, gauss = random.getstate()
    state: dict[str, Any] = {
        "python": {"version": version, "words": np.frombuffer(array("I", words), np.uint32), "gauss": gauss},
        "numpy": np.random.get_state(legacy=False),
    }
    torch = sys.modules.get("torch")
    if torch is not None:
        state["torch"] = torch.get_rng_state()
        state["seed"] = torch.initial_seed()
        if torch.cuda.is_initialized():
            # Only this rank's device: asking for all of them would open a context on each.
            state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore(state: dict[str, Any]) -> None:
    """Set every generator that ``state`` has and that this process uses. Do it last: whatever draws in between is lost."""
    python = state["python"]
    random.setstate((python["version"], tuple(int(word) for word in python["words"]), python["gauss"]))
    np.random.set_state(state["numpy"])
    torch = sys.modules.get("torch")
    if torch is not None and "torch" in state:
        # Copied, because a torch generator (2.13) takes the wrong bytes from a view with an offset.
        torch.set_rng_state(state["torch"].clone())
        if "cuda" in state and torch.cuda.is_available():
            torch.cuda.set_rng_state(state["cuda"].clone())


def derive(state: dict[str, Any], step: int, rank: int) -> None:
    """Seed every generator from (saved seed, step, rank): for a rank that has no state of its own to go on from."""
    words = np.random.SeedSequence([int(state.get("seed", 0)) % 2**64, step, rank]).generate_state(4, np.uint64)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]) % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(int(words[2]) % 2**63)
