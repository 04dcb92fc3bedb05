"""What the ranks have written down: losses per step, digests of the final weights. Owns the parsing of the example's lines."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_STEP = re.compile(r"^step (\d+) loss (\S+) generation (\d+)$", re.MULTILINE)
_FINAL = re.compile(r"^final (\d+) (\d+) ([0-9a-f]{64})$", re.MULTILINE)


class Loss(NamedTuple):
    generation: int
    step: int
    loss: str
    """As it was printed: equal text is what is compared."""

    @property
    def value(self) -> float:
        return float(self.loss)


class Final(NamedTuple):
    rank: int
    step: int
    digest: str


def losses(rank_logs: Path) -> list[Loss]:
    """Every step that rank 0 completed and printed, in the order of generations; a step that was redone comes twice."""
    found: list[Loss] = []
    for log in rank_logs.glob("*/g*/rank0.log"):
        text = log.read_text(encoding="utf-8", errors="replace")
        found += [Loss(int(generation), int(step), loss) for step, loss, generation in _STEP.findall(text)]
    return sorted(found)


def finals(path: Path) -> list[Final]:
    """Empty where no rank came to the end."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return sorted(Final(int(rank), int(step), digest) for rank, step, digest in _FINAL.findall(text))


def redone(found: Iterable[Loss]) -> int:
    """Steps that were computed more than once."""
    steps = [loss.step for loss in found]
    return len(steps) - len(set(steps))
