"""Reads lines that tell of a step: Megatron, DeepSpeed, Hugging Face, torchtitan, DLRover's events, JSON. Owns their fields.

What a series of steps means is for ``core/steps.py``.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from keepstep.core.steps import Step

_MEGATRON = re.compile(r"\biteration\s+(\d{1,12})\s*/\s*\d{1,12}\s*\|(.{1,4000})")
_FIELD = re.compile(r"([A-Za-z][A-Za-z /()_-]{1,60}?)\s*:\s*([-+0-9.eEnainf]{1,40})\s*(?:\||$)", re.I)
_HF = re.compile(r"\{'(?:loss|train_loss)': .{1,2000}\}")
_PAIR = re.compile(r"'([a-z_]{1,40})': '?([-+0-9.eEnainf]{1,40})'?", re.I)
_DEEPSPEED = re.compile(r"steps: (\d{1,12}) loss: ([-+0-9.eEnainf]{1,40}) iter time \(s\): ([0-9.]{1,20})", re.I)
_TITAN = re.compile(
    r"\bstep:? ?=? ?\s{0,4}(\d{1,12})\b.{0,60}?\bloss:? ?=? ?\s{0,4}([-+]?(?:[0-9][0-9.eE+-]{0,30}|nan|inf))", re.I
)
_EVENT = re.compile(r"\[#(step|log)\] \[(BEGIN|END|INSTANT)\] (\{.{1,8000}\})")

_NAMES = {
    "step": ("global_step", "iteration", "step", "steps", "_step", "global step"),
    "loss": ("lm loss", "lm_loss", "loss", "train_loss", "train/loss", "loss/train", "training_loss"),
    "grad_norm": ("grad norm", "grad_norm", "train/grad_norm"),
    "seconds": ("sec", "step_time", "step_time_s", "iteration_time", "elapsed_s", "time_per_step", "train_step_time"),
    "milliseconds": ("elapsed time per iteration (ms)", "step_time_ms", "iteration_time_ms"),
    "consumed": ("consumed samples", "consumed_train_samples", "consumed_samples"),
    "batch": ("global batch size", "global_batch_size"),
    "nans": ("number of nan iterations",),
}  # fmt: skip


def step_of(line: str, number: int) -> Step | None:
    """The step that a line of a log tells of; None where it tells of none."""
    megatron = _MEGATRON.search(line)
    if megatron is not None:
        return _made({name.strip().lower(): value for name, value in _FIELD.findall(megatron[2])}, number, megatron[1])
    event = _EVENT.search(line)
    if event is not None:
        return _event(event[1], event[3], number)
    hf = _HF.search(line)
    if hf is not None:
        return _made(dict(_PAIR.findall(hf[0])), number)
    deepspeed = _DEEPSPEED.search(line)
    if deepspeed is not None:
        return _made({"loss": deepspeed[2], "sec": deepspeed[3]}, number, deepspeed[1])
    if line.lstrip()[:1] == "{":
        return _from_json_line(line, number)
    titan = _TITAN.search(line)
    return _made({"loss": titan[2]}, number, titan[1]) if titan is not None else None


def _event(kind: str, text: str, number: int) -> Step | None:
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(told, dict):
        return None
    logs = told.get("logs")
    values = {**(logs if isinstance(logs, dict) else {}), **told}
    step = _made(values, number)
    # The summary of a step repeats its end: its position is taken from the events of steps alone.
    return step if kind == "step" or step is None else _without_position(step)


def _without_position(step: Step) -> Step:
    return Step(step=step.step, loss=step.loss, grad_norm=step.grad_norm, seconds=step.seconds, line=step.line)


def _from_json_line(line: str, number: int) -> Step | None:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return from_row(told, number) if isinstance(told, dict) else None


def from_row(told: Mapping[str, Any], number: int) -> Step | None:
    """A step out of a row of metrics; None unless it has a number and something to say."""
    step = _made(told, number)
    if step is None or step.step < 0:
        return None
    return step if any(x is not None for x in (step.loss, step.seconds, step.consumed)) else None


def series(value: Any) -> Iterator[list[Step]]:
    """Every list of rows in a JSON document that tells of steps."""
    level = [value]
    for _ in range(5):
        below: list[Any] = []
        for item in level:
            if isinstance(item, list):
                rows = [from_row(row, 0) for row in item if isinstance(row, dict)]
                found = [row for row in rows if row is not None]
                if len(found) >= 2:
                    yield found
                else:
                    below.extend(x for x in item[:1000] if isinstance(x, (dict, list)))
            elif isinstance(item, dict):
                below.extend(x for x in item.values() if isinstance(x, (dict, list)))
        level = below


def _made(told: Mapping[str, Any], line: int, step: str = "") -> Step | None:
    values = {kind: _first(told, names) for kind, names in _NAMES.items()}
    seconds = values["seconds"]
    if seconds is None and values["milliseconds"] is not None:
        seconds = values["milliseconds"] / 1000
    number = float(step) if step else values["step"]
    if number is not None and not abs(number) < 1e15:
        return None
    return Step(
        step=int(number) if number is not None else -1, loss=values["loss"], grad_norm=values["grad_norm"], seconds=seconds,
        consumed=values["consumed"], batch=values["batch"], nans=values["nans"], line=line,
    )  # fmt: skip


def _first(told: Mapping[str, Any], names: tuple[str, ...]) -> float | None:
    for name in names:
        value = told.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            continue
        try:
            return float(value)
        except (ValueError, OverflowError):
            continue
    return None
