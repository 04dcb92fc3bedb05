"""From rows to a model, and from a model to ``keepstep.core.health.weights``. Owns the fit of the three stretches."""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.health.fitting import Sample, fit_hazard
from bench.health.landmarks import KINDS, Rows
from bench.health.traces import Recurrence
from keepstep.core.health.features import FEATURES
from keepstep.core.health.forecast import HORIZONS_H, STRETCHES_H, Model, forecast, recurrence_nats

Array = NDArray[np.float64]
WEIGHTS = Path(__file__).parents[2] / "src" / "keepstep" / "core" / "health" / "weights.py"
PER_NODE = {"gpu": 8, "nic": 8, "node": 1}
PUBLISHED_PER_NODE_DAY = 3.8e-3
PUBLISHED_SHARES = {"gpu": 268 / 419, "nic": 42 / 419, "node": 55 / 419}
"""Of the published causes of 419 interruptions: accelerators with their memory; adapters, switches and cables; rest of the
host. Software (54) is no part's fault."""
LEAST_NATS = 0.005
PREFIX = "past_failures."
COUNTED = tuple(name for name in FEATURES if not name.startswith(PREFIX))


def published_base_per_h() -> dict[str, float]:
    return {kind: round(PUBLISHED_PER_NODE_DAY * PUBLISHED_SHARES[kind] / PER_NODE[kind] / 24, 8) for kind in KINDS}


def fleet_base_per_h(rows: Rows) -> dict[str, float]:
    """What the fleet itself measures: failures within a day over hours of service."""
    found = {}
    for number, kind in enumerate(KINDS):
        own = rows.kind == number
        if own.any():
            found[kind] = float((rows.weight * (rows.ahead_h <= 24))[own].sum() / rows.weight[own].sum() / 24)
    return found


def fitted(rows: Rows, recurrence: Recurrence) -> Model:
    """The model of a fleet's rows; its base is that fleet's."""
    base = fleet_base_per_h(rows)
    frame = Model(
        base_per_h=base,
        intercepts={},
        weights={},
        recurrence={PREFIX + term: round(nats, 3) for term, nats in recurrence.nats.items()},
        per_node=PER_NODE,
    )
    again = np.array([_again(kind, found, frame) for kind, found in zip(rows.kind, rows.found, strict=True)])
    matrix = rows.matrix()[:, [FEATURES.index(name) for name in COUNTED]]
    kinds = np.eye(len(KINDS))[rows.kind]
    offset = np.log([base[KINDS[kind]] for kind in rows.kind])
    features = np.column_stack([again, matrix])
    solved = []
    for start, hours in zip((0.0, *HORIZONS_H), STRETCHES_H, strict=False):
        left = rows.ahead_h > start
        failed = (rows.ahead_h[left] <= start + hours).astype(float)
        sample = Sample(kinds[left], features[left], offset[left], failed, rows.weight[left])
        solved.append(fit_hazard(sample, hours))
    return _made(frame, np.array(solved), np.asarray(matrix.any(axis=0)))


def forecasts(rows: Rows, model: Model) -> NDArray[np.float64]:
    """Columns: P within 1, 6, 24 hours. By the very code that runs in production."""
    return np.array([forecast(KINDS[k], f, model).within for k, f in zip(rows.kind, rows.found, strict=True)])


def _again(kind: int, found: dict[str, float], frame: Model) -> float:
    nats = sum(value * frame.recurrence[name] for name, value in found.items() if name in frame.recurrence)
    return recurrence_nats(KINDS[kind], nats, frame) if nats > 0 else 0.0


def _made(frame: Model, solved: Array, occurred: NDArray[np.bool_]) -> Model:
    columns = solved.T
    first = len(KINDS) + 1
    weights = {
        name: _three(column)
        for name, column, seen in zip(COUNTED, columns[first:], occurred, strict=True)
        if seen and max(column) >= LEAST_NATS
    }
    return Model(
        base_per_h=frame.base_per_h,
        intercepts={kind: _three(columns[number]) for number, kind in enumerate(KINDS)},
        weights=weights,
        recurrence=frame.recurrence,
        recurrence_weight=_three(columns[len(KINDS)]),
        per_node=frame.per_node,
    )


def _three(column: Array) -> tuple[float, float, float]:
    first, second, third = (round(float(each), 3) for each in column)
    return first, second, third


def write(model: Model, path: Path = WEIGHTS) -> None:
    """The model as code, with the published base rates: those of the simulated fleet mean nothing elsewhere."""
    lines = [
        '"""The fitted numbers of the health score, as data. Written by ``python -m bench.health fit``; not to be edited.',
        "",
        "Weights: nats for a strength of 1 in the first hour, the 5 after it, the 18 after those; from simulated fleets with",
        "known truth. Recurrence: LANL's systems with even numbers. Base rates: published, to be replaced by a fleet's own.",
        '"""',
        "",
        "from keepstep.core.health.forecast import Model",
        "",
        "MODEL = Model(",
        f"    base_per_h={_dict(published_base_per_h())},",
        f"    intercepts={_dict(model.intercepts)},",
        f"    weights={_dict(model.weights)},",
        f"    recurrence={_dict(model.recurrence)},",
        f"    recurrence_weight={model.recurrence_weight},",
        f"    per_node={_dict(model.per_node)},",
        ")",
    ]
    path.write_text("\n".join(lines) + "\n")


def _dict(values: object) -> str:
    assert isinstance(values, dict)
    inner = "".join(f'        "{name}": {value},\n' for name, value in values.items())
    return "{\n" + inner + "    }"


assert math.isclose(sum(STRETCHES_H), HORIZONS_H[-1])
