"""Why the intervals are what they are, with every number. Owns the explanation; no clock, no I/O, no colours.

Made of tables of plain strings: ``keepstep checkpoint plan`` and the dashboard draw them, :func:`text` writes them out.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from keepstep.checkpoint.interval.estimate import DAY_S, Belief, Division, Figure, Scope, divide
from keepstep.checkpoint.interval.optimal import Save
from keepstep.checkpoint.interval.tiers import Choice, Tier, TierChoice, choose, overhead

_LOST: dict[Scope, str] = {
    "process": "workers end, the host's memory stays",
    "node": "one node is gone, with memory and disks",
    "power": "all memory is gone, disks stay",
    "site": "a group of nodes is gone, with its disks",
}


class TierInputs(Struct, frozen=True, kw_only=True):
    """One tier: what it survives, what a save into it costs, and what was declared."""

    name: str
    survives: tuple[Scope, ...]
    stall: Figure
    """What it adds to the stall of the tier before it."""
    durable: Figure
    restart: Figure
    """From the failure until the loop trains again, with a restore from this tier."""
    least_s: float = 0.0
    most_s: float = DAY_S


class Inputs(Struct, frozen=True, kw_only=True):
    """Everything that the choice depends on."""

    job: str
    tiers: tuple[TierInputs, ...]
    """The most frequent first."""
    beliefs: tuple[Belief, ...]
    """One for each scope."""
    step_s: float | None = None
    accelerators: int = 0
    current_s: tuple[float, ...] | None = None
    """Intervals in use."""


class Change(Struct, frozen=True, kw_only=True):
    """What if."""

    what: str
    overhead: float | None
    """None: not possible."""
    intervals_s: tuple[float, ...] = ()
    """Where they would be chosen anew."""


class Plan(Struct, frozen=True, kw_only=True):
    """The choice, and what it rests on."""

    inputs: Inputs
    division: Division
    choice: Choice
    changes: tuple[Change, ...]
    warnings: tuple[str, ...]


class Table(Struct, frozen=True, kw_only=True):
    """Plain strings; every row is as long as ``columns``."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def explain(inputs: Inputs) -> Plan:
    """Choose the intervals, and say what would change them. Raises ValueError for inputs that allow no plan."""
    division = divide(
        [tier.survives for tier in inputs.tiers], {belief.prior.scope: belief.rate_per_s for belief in inputs.beliefs}
    )
    tiers = model(inputs, division)
    choice = choose(tiers, inputs.current_s)
    return Plan(
        inputs=inputs,
        division=division,
        choice=choice,
        changes=tuple(_changes(inputs, tiers, choice)),
        warnings=tuple(_warnings(inputs, division, choice)),
    )


def model(inputs: Inputs, division: Division) -> tuple[Tier, ...]:
    """The tiers as the optimiser takes them: a save is durable no sooner than its stall is over."""
    return tuple(
        Tier(
            name=tier.name,
            save=Save(stall_s=tier.stall.value_s, durable_s=max(tier.durable.value_s, tier.stall.value_s)),
            rate_per_s=rate_per_s,
            restart_s=tier.restart.value_s,
            least_s=max(tier.least_s, inputs.step_s or 0.0),
            most_s=tier.most_s,
        )
        for tier, rate_per_s in zip(inputs.tiers, division.rates_per_s, strict=True)
    )


def tables(plan: Plan) -> tuple[Table, ...]:
    """Choice, costs, failures, what if."""
    return (_choice_table(plan), _cost_table(plan), _failure_table(plan), _change_table(plan))


def text(plan: Plan) -> str:
    """All of it as plain text."""
    blocks = [summary(plan)]
    blocks += ["\n".join(f"warning: {warning}" for warning in plan.warnings)] if plan.warnings else []
    blocks += [_aligned(table) for table in tables(plan)]
    return "\n\n".join(blocks) + "\n"


def summary(plan: Plan) -> str:
    """One sentence."""
    share = plan.choice.overhead
    said = f"{plan.inputs.job}: saves, lost work and restarts take {percent(share)} of the time"
    if plan.inputs.accelerators:
        said += f", {plan.inputs.accelerators * 24 * share:.1f} accelerator-hours a day"
    return said + ("; the intervals in use are kept" if plan.choice.kept else "")


def duration(seconds: float) -> str:
    """For a person: ``0.35 s``, ``42 s``, ``12.5 min``, ``3.1 h``, ``5.2 d``."""
    if seconds < 10:
        return f"{seconds:.2g} s"
    for limit, unit, name in ((120.0, 1.0, "s"), (7200.0, 60.0, "min"), (2 * DAY_S, 3600.0, "h")):
        if seconds < limit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / DAY_S:.3g} d"


def percent(share: float) -> str:
    return f"{share * 100:.2f} %" if share < 0.1 else f"{share * 100:.1f} %"


def _changes(inputs: Inputs, tiers: Sequence[Tier], choice: Choice) -> Iterator[Change]:
    for tier in choice.tiers:
        yield Change(what=f"{tier.name} twice as often", overhead=tier.overhead_halved)
        yield Change(what=f"{tier.name} half as often", overhead=tier.overhead_doubled)
    for words, factor in (("twice", 2.0), ("half", 0.5)):
        scaled = [replace(tier, rate_per_s=tier.rate_per_s * factor) for tier in tiers]
        yield Change(
            what=f"failures {words} as frequent, same intervals", overhead=overhead(scaled, choice.intervals_s)
        )
        yield _anew(f"failures {words} as frequent, chosen anew", scaled)
    for words, factor in (("twice", 2.0), ("half", 0.5)):
        saves = [
            Save(stall_s=tier.save.stall_s * factor, durable_s=max(tier.save.durable_s, tier.save.stall_s * factor))
            for tier in tiers
        ]
        longer = [replace(tier, save=save) for tier, save in zip(tiers, saves, strict=True)]
        yield _anew(f"stalls {words} as long, chosen anew", longer)
    for gone in inputs.tiers if len(inputs.tiers) > 1 else ():
        yield _without(inputs, gone)


def _anew(what: str, tiers: Sequence[Tier]) -> Change:
    try:
        choice = choose(tiers)
    except ValueError:
        return Change(what=what, overhead=None)
    return Change(what=what, overhead=choice.overhead, intervals_s=choice.intervals_s)


def _without(inputs: Inputs, gone: TierInputs) -> Change:
    """Its failures go to the tiers after it; what none survives has no price here."""
    rates = {belief.prior.scope: belief.rate_per_s for belief in inputs.beliefs}
    left = [tier for tier in inputs.tiers if tier.name != gone.name]
    before = divide([tier.survives for tier in inputs.tiers], rates)
    after = divide([tier.survives for tier in left], rates)
    lost = [scope for scope in after.uncovered if scope not in before.uncovered]
    if lost:
        return Change(what=f"without {gone.name}: nothing survives {_and(lost)}", overhead=None)
    if inputs.tiers[0].name == gone.name:
        # The snapshot is its stall; the next tier would have to pay it.
        stall_s = left[0].stall.value_s + gone.stall.value_s
        left[0] = replace(left[0], stall=replace(left[0].stall, value_s=stall_s))
    return _anew(f"without {gone.name}, chosen anew", model(replace(inputs, tiers=tuple(left)), after))


def _warnings(inputs: Inputs, division: Division, choice: Choice) -> Iterator[str]:
    per_day = {belief.prior.scope: belief.per_day for belief in inputs.beliefs}
    for scope in division.uncovered:
        once = duration(DAY_S / per_day[scope]) if per_day[scope] else "never"
        yield f"no tier survives {scope} failures ({_LOST[scope]}; expected once in {once}): the run would start from nothing"
    for tier, chosen in zip(inputs.tiers, choice.tiers, strict=True):
        if chosen.interval_s > tier.most_s:
            yield (
                f"{tier.name}: declared to be saved every {duration(tier.most_s)} at least, but its writes and the tiers "
                f"before it allow {duration(chosen.interval_s)}"
            )
        assumed = [name for name, figure in _figures(tier) if not figure.samples]
        if assumed:
            yield f"{tier.name}: {_and(assumed)} assumed, not measured yet"


def _figures(tier: TierInputs) -> tuple[tuple[str, Figure], ...]:
    return (("stall", tier.stall), ("write", tier.durable), ("restart", tier.restart))


def _choice_table(plan: Plan) -> Table:
    def row(tier: TierInputs, chosen: TierChoice, scopes: Sequence[Scope]) -> tuple[str, ...]:
        steps = "-" if not plan.inputs.step_s else str(max(1, round(chosen.interval_s / plan.inputs.step_s)))
        return (
            tier.name, duration(chosen.interval_s), steps, str(chosen.every), chosen.held_by, _and(scopes) or "-",
            percent(chosen.stall_share), percent(chosen.failure_share), duration(chosen.loss_s),
        )  # fmt: skip

    rows = zip(plan.inputs.tiers, plan.choice.tiers, plan.division.scopes, strict=True)
    return Table(
        title="What was chosen",
        columns=("tier", "interval", "steps", "every", "held by", "answers", "stall", "failures", "one failure costs"),
        rows=tuple(row(*each) for each in rows),
    )


def _cost_table(plan: Plan) -> Table:
    return Table(
        title="What a save costs",
        columns=("tier", "part", "value", "measured", "source"),
        rows=tuple(
            (
                tier.name, part, duration(figure.value_s),
                f"{figure.samples} times" if figure.samples else "assumed", figure.source,
            )
            for tier in plan.inputs.tiers
            for part, figure in _figures(tier)
        ),
    )  # fmt: skip


def _failure_table(plan: Plan) -> Table:
    def row(belief: Belief) -> tuple[str, ...]:
        low, high = belief.likely_per_day
        often = duration(DAY_S / high) if high else "never"
        seldom = duration(DAY_S / low) if low else "never"
        seen = f"{belief.seen} in {belief.exposure_days:.3g} {'node-' if belief.prior.per_node else ''}days"
        return (
            belief.prior.scope, _LOST[belief.prior.scope], duration(DAY_S / belief.per_day), f"{often} to {seldom}",
            seen if belief.exposure_days else "nothing yet", belief.prior.source,
        )  # fmt: skip

    return Table(
        title="How often failures come",
        columns=("scope", "what is lost", "once in", "90 % between", "seen", "believed before"),
        rows=tuple(row(belief) for belief in plan.inputs.beliefs),
    )


def _change_table(plan: Plan) -> Table:
    def row(change: Change) -> tuple[str, ...]:
        if change.overhead is None:
            return (change.what, "not possible", "-", "-")
        more = (change.overhead - plan.choice.overhead) * 100
        return (
            change.what, percent(change.overhead), f"{more:+.2f} points",
            ", ".join(duration(interval_s) for interval_s in change.intervals_s) or "-",
        )  # fmt: skip

    return Table(
        title="What would change it",
        columns=("if", "overhead", "difference", "intervals"),
        rows=tuple(row(change) for change in plan.changes),
    )


def _aligned(table: Table) -> str:
    lines = [table.columns, *table.rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(table.columns))]
    return "\n".join(
        [table.title]
        + [
            "  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
    )


def _and(words: Sequence[str]) -> str:
    return ", ".join(words[:-1]) + (" and " if len(words) > 1 else "") + words[-1] if words else ""
