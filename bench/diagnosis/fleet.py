"""``python -m bench.diagnosis.fleet``: 2,000 nodes for a simulated month, judged against the truth. Writes ``fleet.md``.

``--seed``, ``--nodes`` and ``--days`` change what is run; anything but the whole month of the whole fleet writes nothing.
"""

import argparse
import gc
import resource
import sys
from pathlib import Path

import msgspec

from keepstep.core.preemptions import Precision
from keepstep.review.estimates import nearest
from keepstep.sim.fleet_run import FleetResult, FleetRun, Kind, spread
from keepstep.sim.scenario import Scenario, load

PAGE = Path(__file__).parent / "fleet.md"
SCENARIO = "fleet-month"
NODES, DAYS = 2000, 30.0
_PER_JOB = 100
_GOAL_S, _GOAL_SHARE = 30.0, 0.01


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.diagnosis.fleet", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--days", type=float, default=DAYS)
    options = parser.parse_args()
    gc.freeze()
    result = FleetRun(SCENARIO, options.seed, scenario(options.nodes, options.days)).run()
    text = page(result)
    if (options.nodes, options.days) == (NODES, DAYS):
        PAGE.write_text(text)
    print(text)
    sys.exit(0 if _holds(result) else 1)


def scenario(nodes: int, days: float) -> Scenario:
    """The month, smaller or shorter. Jobs keep their size."""
    month = load(SCENARIO)
    jobs = max(1, nodes // _PER_JOB)
    fleet = msgspec.structs.replace(month.fleet, jobs=(jobs, jobs))
    return msgspec.structs.replace(month, fleet=fleet, safety_s=(days * 86_400.0, days * 86_400.0))


def _holds(result: FleetResult) -> bool:
    return (
        result.isolation_s(0.99) < _GOAL_S
        and result.unnecessary_share < _GOAL_SHARE
        and all(told == 1 for kind in result.kinds if kind.shared for told in kind.told)
    )


# ---- the page


def page(result: FleetResult) -> str:
    days, peak = result.simulated_s / 86_400.0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    head = [
        "# A fleet for a month",
        "",
        f"`python -m bench.diagnosis.fleet --seed {result.seed}`: {result.nodes} nodes of 8 cards, {days:.0f} simulated",
        "days, in",
        f"{result.wall_s / 60.0:.1f} minutes on one core ({peak:.1f} GiB). {result.entries} journal entries,",
        f"{result.signals} signals ({result.signals / result.wall_s:.0f} a second of wall time), {result.restarts} restarts,",
        f"{result.replaced} machines replaced, {result.jobs_ended} jobs submitted again.",
        "",
        "Rates of faults and noise, with the source of each, are in `src/keepstep/sim/scenarios/fleet-month.toml`; what an",
        "unnecessary preemption is stands in [docs](../../docs/explanation/preemptions.md).",
    ]
    parts = (head, _goals(result), _faults(result.kinds), _noise(result), _precision(result.precision))
    return "\n".join(line for part in parts for line in (*part, ""))


def _goals(result: FleetResult) -> list[str]:
    shared = [told for kind in result.kinds if kind.shared for told in kind.told]
    parts = sum(len(kind.out_s) for kind in result.kinds if not kind.shared)
    p50_s, p99_s = result.isolation_s(0.5), result.isolation_s(0.99)
    missed, unwatched = (sum(getattr(kind, name) for kind in result.kinds) for name in ("missed", "unwatched"))
    unnecessary = len(result.unnecessary_by_truth)
    journal = sum(rule.preemptions_unnecessary for rule in result.precision)
    open_ = sum(rule.preemptions_pending for rule in result.precision)
    rows = [
        (f"isolation of node-level faults, p50 / p99 of {parts}", f"{p50_s:.1f} s / {p99_s:.1f} s", "p99 < 30 s"),
        ("common causes that are one fault", f"{shared.count(1)} of {len(shared)}", "all"),
        ("true faults that were missed", f"{missed} ({unwatched} on nodes without an agent beside)", "0"),
        ("isolations of what was well", f"{len(result.false_holds)} of {result.holds}", "0"),
        (
            "unnecessary preemptions, by the truth",
            f"{unnecessary} of {result.preemptions} ({result.unnecessary_share:.1%})",
            "< 1 %",
        ),
        ("restarts that nothing justified", f"{len(result.unjustified)} of {result.restarts}", "0"),
        (
            "unnecessary preemptions, by the journal (an upper bound)",
            f"{journal} of {result.preemptions - open_} judged, {open_} open",
            "",
        ),
    ]
    return ["| | measured | goal |", "|---|---|---|", *(f"| {a} | {b} | {c} |" for a, b, c in rows)]


def _faults(kinds: tuple[Kind, ...]) -> list[str]:
    lines = [
        "## True faults",
        "",
        "*Out after*: from the fault until its part could not be given work: it was held, or its node was silent.",
        "*Evident*: a flapping port or a hot card is a fault by what repeats or lasts; the goal counts from there. *Told*:",
        "faults of the engine per true one, `faults×times`; a node that panics prints nothing: its job tells it (0).",
        "",
        "| fault | happened | missed | out after p50 | p99 | evident | told |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in kinds:
        out = [f"{nearest(kind.out_s, share):.1f} s" if kind.out_s else "–" for share in (0.5, 0.99)]
        evident = f"{kind.evident_s:.0f} s" if kind.evident_s else "at once"
        name = f"{kind.kind} (common cause)" if kind.shared else kind.kind
        lines.append(
            f"| {name} | {kind.happened} | {kind.missed} | {out[0]} | {out[1]} | {evident} | {spread(kind.told)} |"
        )
    return lines


def _noise(result: FleetResult) -> list[str]:
    told = ", ".join(f"{name} {count}" for name, count in sorted(result.noise.items(), key=lambda item: -item[1]))
    lines = [
        "## Noise",
        "",
        f"{sum(result.noise.values())} harmless events: {told}. Our own kills print as well.",
        "",
        f"{result.holds} isolations; {result.member_holds} of members of a common cause before that was known.",
    ]
    if result.unexplained:
        suspicions = ", ".join(f"{key} ({of}) {count}" for key, of, count in result.unexplained)
        lines += ["", f"Suspicions without a fault, on which nothing was done but to watch: {suspicions}."]
    for at_s, what, why in result.false_holds[:20]:
        lines.append(f"- held and well: {what} at {at_s:.0f} s: {why}")
    for at_s, rule, job in result.unnecessary_by_truth[:20]:
        lines.append(f"- unnecessary: {rule} moved {job} at {at_s:.0f} s")
    for at_s, what in result.unjustified[:20]:
        lines.append(f"- not justified: {what} at {at_s:.0f} s")
    return lines


def _precision(rules: tuple[Precision, ...]) -> list[str]:
    lines = [
        "## By rule, as the journal judges",
        "",
        "| rule | class | isolated | confirmed | quiet for a week | open | jobs moved | confirmed | quiet |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {x.rule} | {x.failure_class} | {x.isolations} | {x.confirmed} | {x.unnecessary} | {x.pending} | {x.preemptions} "
        f"| {x.preemptions_confirmed} | {x.preemptions_unnecessary} |"
        for x in rules
    ]
    return lines


if __name__ == "__main__":
    main()
