"""What a series of training steps shows: a loss that spiked or is no number, steps that slowed, data read twice. Pure."""

import math
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from keepstep.core.stragglers import slowdown


class Step(Struct, frozen=True, kw_only=True):
    step: int
    """-1 where the line does not say."""
    loss: float | None = None
    grad_norm: float | None = None
    seconds: float | None = None
    consumed: float | None = None
    """Samples consumed since the beginning of the training."""
    batch: float | None = None
    nans: float | None = None
    """Iterations without a number, as the program counts them."""
    line: int = 0


class StepFinding(Struct, frozen=True, kw_only=True):
    signal: str
    text: str
    step: int
    line: int
    value: float = 0.0


_WINDOW = 20
_RECOVERS_WITHIN = 30
_PERSISTENT_NANS = 3


def findings(steps: Sequence[Step]) -> list[StepFinding]:
    """Everything that stands out, in the order in which it is looked for."""
    found = (_no_number(steps), _spike(steps), _slower(steps), _data_regression(steps))
    return [finding for finding in found if finding is not None]


def _no_number(steps: Sequence[Step]) -> StepFinding | None:
    """A loss that is no number to the end is a fault; one that came back is none."""
    losses = [step for step in steps if step.loss is not None]
    bad = [step for step in losses if step.loss is not None and not math.isfinite(step.loss)]
    if not bad:
        return None
    tail = 0
    for step in reversed(losses):
        if step.loss is None or math.isfinite(step.loss):
            break
        tail += 1
    if tail >= min(_PERSISTENT_NANS, len(losses)):
        first = losses[-tail]
        text = f"the loss is no number from step {first.step} to the end ({tail} steps)"
        return StepFinding(signal="job.loss_nan", text=text, step=first.step, line=first.line, value=float(tail))
    text = f"the loss was no number in {len(bad)} steps, from step {bad[0].step} on, and came back"
    return StepFinding(signal="job.loss_spike", text=text, step=bad[0].step, line=bad[0].line)


def _spike(steps: Sequence[Step]) -> StepFinding | None:
    """The highest rise over the steps before it. Within the time that spikes take to heal nothing is called lasting."""
    known = [step for step in steps if step.loss is not None and math.isfinite(step.loss)]
    losses = [float(step.loss or 0.0) for step in known]
    worst, at = 0.0, -1
    for index in range(3, len(losses)):
        before = losses[max(0, index - _WINDOW) : index]
        rise = losses[index] - median(before)
        if rise > max(8 * _deviation(before), 0.3 * abs(median(before))) and rise > worst:
            worst, at = rise, index
    if at < 0:
        return None
    base = median(losses[max(0, at - _WINDOW) : at])
    rest = losses[at + _RECOVERS_WITHIN :]
    lasting = len(rest) >= _WINDOW and median(rest[-_WINDOW:]) > base + 0.5 * worst
    signal = "job.loss_diverged" if lasting else "job.loss_spike"
    told = (
        "and stays there" if lasting else "and is no reason to go back" if rest or losses[-1] < base + worst / 2 else ""
    )
    text = f"the loss rises from {base:.3g} to {losses[at]:.3g} at step {known[at].step} {told}".rstrip()
    return StepFinding(signal=signal, text=text, step=known[at].step, line=known[at].line, value=losses[at])


def _deviation(values: Sequence[float]) -> float:
    middle = median(values)
    return 1.4826 * median(abs(value - middle) for value in values)


def _slower(steps: Sequence[Step]) -> StepFinding | None:
    """Step times that rise and stay, for the same amount of work. The first steps warm up and are not counted."""
    timed = [step for step in steps if step.seconds is not None and step.seconds > 0 and math.isfinite(step.seconds)]
    if timed and timed[0].step <= 1:
        timed = timed[2:]
    batches = {step.batch for step in timed}
    if len(batches) > 1:
        return None
    change = slowdown([float(step.seconds or 0.0) for step in timed])
    if change is None:
        return None
    first = timed[change.since]
    more = 100 * (change.ratio - 1)
    text = f"steps take {more:.1f} % longer from step {first.step} on: {change.before:.4g} s, then {change.after:.4g} s"
    return StepFinding(signal="job.step_slower", text=text, step=first.step, line=first.line, value=change.ratio)


def _data_regression(steps: Sequence[Step]) -> StepFinding | None:
    """The position in the data goes back while the steps go on: samples are read again. After a restart both go back."""
    last: Step | None = None
    for step in steps:
        if step.consumed is None:
            continue
        if last is not None and last.consumed is not None and step.consumed < last.consumed and step.step >= last.step:
            text = (
                f"samples consumed fall from {last.consumed:,.0f} at step {last.step} to {step.consumed:,.0f} "
                f"at step {step.step}"
            )
            return StepFinding(
                signal="job.data_regression", text=text, step=step.step, line=step.line, value=step.consumed
            )
        last = step
    return None
