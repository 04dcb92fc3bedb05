"""``python -m bench.health fit``: weights of the health score from simulated fleets and LANL's failures, into ``weights.py``.
``python -m bench.health evaluate``: how those in use do on fleets and systems that the fit has not seen, into ``results.md``.

``--quick``: small, to see that it runs; writes nothing.
"""

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from bench.health import page, saving, traces
from bench.health.judging import Verdict, judged, reliability, summary
from bench.health.landmarks import Rows, joined, rows
from bench.health.model import WEIGHTS, fitted, fleet_base_per_h, forecasts, published_base_per_h, write
from keepstep.core.health.forecast import HORIZONS_H, Model
from keepstep.core.health.weights import MODEL
from keepstep.sim.wear import Setting

RESULTS = Path(__file__).parent / "results.md"
FIT_SEEDS = range(100, 106)
HELD_OUT_SEEDS = range(950, 953)
FLEET = Setting(racks=20, nodes_per_rack=8, days=365)
OTHER = msgspec.structs.replace(
    FLEET, noise=2.0, uncured=0.15, relapse_days=10.0, wear_days=1.5, chronic=0.06,
    per_day=(("gpu", 6.0e-4), ("nic", 1.0e-4), ("node", 1.0e-3)),
)  # fmt: skip
"""Another fleet than the one of the fit: twice the failures, twice the noise, half the warning, fewer but later relapses."""
ORDINARY_NODES = 180
PROCESSES = 2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.health", description=__doc__)
    parser.add_argument("action", choices=("fit", "evaluate"))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    started = time.monotonic()
    text = fit(options.quick) if options.action == "fit" else evaluate(options.quick)
    print(text)
    print(f"took {time.monotonic() - started:.0f} s", file=sys.stderr)


def fit(quick: bool) -> str:
    recurrence = traces.fit(dict(traces.each_pair(traces.training(traces.systems()))))
    model = fitted(_fleets(FIT_SEEDS, FLEET, quick), recurrence)
    if not quick:
        write(model, WEIGHTS)
        page.write(msgspec.structs.replace(model, base_per_h=published_base_per_h()))
    lines = [f"{name:34} " + "  ".join(f"{each:7.3f}" for each in three) for name, three in model.weights.items()]
    lines += [f"{kind} intercepts {three}" for kind, three in model.intercepts.items()]
    return "\n".join([*lines, f"recurrence {model.recurrence} x {model.recurrence_weight}"])


def evaluate(quick: bool) -> str:
    held_out = _fleets(HELD_OUT_SEEDS, FLEET, quick)
    other = _fleets(HELD_OUT_SEEDS, OTHER, quick)
    text = "\n\n".join(
        [
            "Written by `python -m bench.health evaluate`.",
            _simulated("Simulated fleets, other seeds than those of the fit", held_out),
            _simulated(
                "Another fleet: twice the failures and the noise, half the warning (base rate as measured there)", other
            ),
            _lanl(quick),
            saving.table(held_out, MODEL),
            _titan(),
        ]
    )
    if not quick:
        RESULTS.write_text(text + "\n")
    return text


def _fleets(seeds: range, setting: Setting, quick: bool) -> Rows:
    if quick:
        return rows(seeds[0], msgspec.structs.replace(setting, racks=6, days=90), 20)
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        return joined(pool.starmap(rows, [(seed, setting, ORDINARY_NODES) for seed in seeds], chunksize=1))


def _simulated(title: str, found: Rows) -> str:
    model = msgspec.structs.replace(MODEL, base_per_h=fleet_base_per_h(found))
    p = forecasts(found, model)
    verdicts = [
        (f"within {hours:.0f} h", judged(p[:, k], _within(found, hours), found.weight))
        for k, hours in enumerate(HORIZONS_H)
    ]
    counts = f"{len(found.found)} moments, {int((found.ahead_h <= 24).sum())} of them within 24 h of a failure."
    tables = [f"Within {h:.0f} h:\n\n{reliability(v)}" for h, (_, v) in zip(HORIZONS_H, verdicts, strict=True)]
    ablation = _without(found, model)
    return "\n\n".join([f"### {title}", counts, summary(verdicts), ablation, *tables])


def _without(found: Rows, model: Model) -> str:
    """The same within 24 hours with one sort of evidence only."""
    ways: list[tuple[str, Callable[[str], bool]]] = [
        ("24 h, counters only", lambda name: not name.startswith("past_failures")),
        ("24 h, past failures only", lambda name: name.startswith("past_failures")),
        ("24 h, levels and 24 h rates only", lambda name: name.endswith((".rate", ".level"))),
    ]
    made: list[tuple[str, Verdict]] = []
    for title, keep in ways:
        less = Rows(
            found.kind,
            [{n: v for n, v in each.items() if keep(n)} for each in found.found],
            found.ahead_h,
            found.weight,
        )
        made.append((title, judged(forecasts(less, model)[:, 2], _within(found, 24.0), found.weight)))
    return "With less evidence (weights as they are, so calibration is not theirs):\n\n" + summary(made)


def _within(found: Rows, hours: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return (found.ahead_h <= hours).astype(float)


def _lanl(quick: bool) -> str:
    every = traces.systems()
    recurrence = traces.Recurrence(
        {name.split(".")[1]: nats for name, nats in MODEL.recurrence.items()},
        traces.fit(dict(traces.each_pair(traces.training(every)))).intercept,
    )
    flat = traces.Recurrence(dict.fromkeys(traces.TERMS, 0.0), 0.0)
    p: list[list[np.ndarray]] = [[], []]
    failed = []
    for system in traces.held_out(every)[: 2 if quick else None]:
        each = traces.grid(system)
        late = each.day >= system.first_day + traces.PERIOD_DAYS
        failed.append(each.failed[late].astype(float))
        for k, model in enumerate((recurrence, flat)):
            p[k].append(traces.forecasts(each, system, model, 3e-3)[late])
    seen = np.concatenate(failed)
    verdicts = [
        (name, judged(np.concatenate(p[k]), seen))
        for k, name in enumerate(("with recurrence", "base rate of the last 180 days alone"))
    ]
    names = ", ".join(str(s.name) for s in traces.held_out(every))
    ratios = "\n".join(
        ["| since the last failure | systems of the fit | held out |", "|---|---|---|"]
        + [
            f"| {name} | {a:.1f} | {b:.1f} |"
            for (name, a), (_, b) in zip(
                traces.by_age(traces.training(every)), traces.by_age(traces.held_out(every)), strict=True
            )
        ]
    )
    again = ", ".join(f"{s.name}: {traces.again_within(s, 7):.1f}" for s in every if s.nodes >= 512)
    return "\n\n".join(
        [
            f"### LANL, node fails within the next day; systems {names} (the fit has seen the even ones only)",
            f"{len(seen)} node-days, {int(seen.sum())} failures.",
            summary(verdicts),
            reliability(verdicts[0][1]),
            "Rate of failures against the system's average:",
            ratios,
            f"Failures again on the same node within 7 days of its return, against the average (large systems): {again}.",
        ]
    )


def _titan() -> str:
    cards, had, before, after = traces.titan_again()
    return (
        "### Titan, as a check\n\n"
        f"{cards} cards, {had} with an event (double-bit error or off the bus): {before:.3f} events a card-year before the "
        f"first, {after:.3f} after it, {after / before:.1f} times as many. Its dates are those of inventories, so nothing was "
        "fitted to it."
    )


if __name__ == "__main__":
    main()
