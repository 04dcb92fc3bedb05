"""``keepstep checkpoint plan``: how often to save, and why. Owns what is asked and what is assumed; interval chooses."""

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from keepstep.cli.checkpoint_place import WRONG_INPUT, JobOption, StoreOption, open_place, told
from keepstep.cli.terminal import JsonOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.checkpoint.interval.estimate import Belief, Figure, Scope
    from keepstep.checkpoint.interval.plan import Plan, TierInputs
    from keepstep.checkpoint.repository.repository import Repository

TierName = Literal["memory", "peer", "disk", "objects"]
TIERS: tuple[TierName, ...] = ("memory", "peer", "disk", "objects")
RATES_GB_S: dict[TierName, float] = {"memory": 5.0, "peer": 1.0, "disk": 1.0, "objects": 0.5}
"""Of one node, where nothing was measured: a memory copy, a fast network, an NVMe disk or its share of a file system, HTTP."""
START_S = 60.0
"""To find a failure, decide, and start the processes again; assumed."""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What the log of a job tells. None: nothing yet."""

    commits: int = 0
    size_bytes: int | None = None
    """Of the newest one."""
    interval_s: float | None = None
    """Median time between commits of one generation."""
    step_s: float | None = None
    read_back_s: float | None = None
    """Median time from a commit until it was verified: a restore reads as much."""
    read_backs: int = 0


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the command was told. None: not told."""

    tiers: tuple[TierName, ...]
    nodes: int
    shared: bool
    size_gb: float | None
    stall_s: float | None
    write_s: dict[TierName, float]
    restart_s: float | None
    step_s: float | None
    mtbf_h: float | None
    accelerators: int


TierOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tier", help="memory, peer, disk or objects; may be repeated. Default: memory and disk.", metavar="NAME"
    ),
]
MtbfOption = Annotated[
    float | None,
    typer.Option(help="Hours between failures of the job. Default: published rates for this size.", metavar="H"),
]
SizeOption = Annotated[
    float | None, typer.Option(help="State of all ranks. Default: that of the newest checkpoint.", metavar="GB")
]
StallOption = Annotated[
    float | None, typer.Option(help="What a snapshot costs the training loop. Default: a memory copy.", metavar="S")
]
WriteOption = Annotated[
    float | None, typer.Option(help="Until the disk tier has it. Default: 1 GB/s for each node.", metavar="S")
]
PeerOption = Annotated[
    float | None, typer.Option(help="Until a peer has it. Default: 1 GB/s for each node.", metavar="S")
]
ObjectsOption = Annotated[
    float | None, typer.Option(help="Until the object store has it. Default: 0.5 GB/s for each node.", metavar="S")
]
RestartOption = Annotated[
    float | None,
    typer.Option(help="From a failure until the loop trains again. Default: 60 s and a restore.", metavar="S"),
]
StepOption = Annotated[
    float | None, typer.Option(help="Duration of a step. Default: as the checkpoints tell.", metavar="S")
]
AcceleratorsOption = Annotated[
    int, typer.Option(min=0, help="Of the whole job, to tell the cost in hours of them.", metavar="N")
]
LocalDiskOption = Annotated[
    bool, typer.Option("--local-disk", help="The disk tier is on the nodes' own disks: lost with a node.")
]


def plan(
    tier: TierOption = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the job.", metavar="N")] = 1,
    mtbf_h: MtbfOption = None,
    size_gb: SizeOption = None,
    stall_s: StallOption = None,
    write_s: WriteOption = None,
    peer_s: PeerOption = None,
    objects_s: ObjectsOption = None,
    restart_s: RestartOption = None,
    step_s: StepOption = None,
    accelerators: AcceleratorsOption = 0,
    local_disk: LocalDiskOption = False,
    store: StoreOption = None,
    job: JobOption = None,
    json: JsonOption = False,
) -> None:
    """Compute how often to save to each tier, and explain the choice with its numbers.

    Sizes and times come from the options, else from the log of the job, else they are assumed; the tables say which.
    """
    names = _tier_names(tier)
    times = {"peer": peer_s, "disk": write_s, "objects": objects_s}
    given = Given(
        tiers=names, nodes=nodes, shared=not local_disk, size_gb=size_gb, stall_s=stall_s, restart_s=restart_s,
        write_s={name: value for name in names if (value := times.get(name)) is not None}, step_s=step_s,
        mtbf_h=mtbf_h, accelerators=accelerators,
    )  # fmt: skip
    needs_log = size_gb is None and (stall_s is None or any(name not in given.write_s for name in names[1:]))
    facts, whose = Facts(), job or "the job"
    if store is not None or needs_log:
        with told():
            repository = open_place(store, job)
            facts, whose = read_log(repository), repository.job or whose
    if facts.size_bytes is None and needs_log:
        fail("no checkpoint tells how large the state is: say --size-gb, or --stall-s and the write times", WRONG_INPUT)
    try:
        made = make_plan(given, facts, whose)
    except ValueError as error:
        fail(str(error), WRONG_INPUT)
    if json:
        print_json({"plan": made, "log": facts})
    else:
        _print(made, facts)


def _tier_names(names: list[str] | None) -> tuple[TierName, ...]:
    unknown = [name for name in names or () if name not in TIERS]
    if unknown:
        fail(f"there is no tier {unknown[0]!r}; there are: {', '.join(TIERS)}", WRONG_INPUT)
    chosen = names or ["memory", "disk"]
    return tuple(name for name in TIERS if name in chosen)


def read_log(repository: "Repository") -> Facts:
    """Sizes and times of a job's checkpoints, by the clocks of those who wrote the records."""
    repository.log.refresh()
    records = repository.log.records(repository.job)
    commits = [record for record in records if record.kind == "commit"]
    if not commits:
        return Facts()
    gaps = [
        (later.at_unix_s - earlier.at_unix_s, later.step - earlier.step)
        for earlier, later in pairwise(commits)
        if later.generation == earlier.generation and later.step > earlier.step and later.at_unix_s > earlier.at_unix_s
    ]
    when = {record.seq: record.at_unix_s for record in commits}
    read_back: dict[int, float] = {}
    for record in records:
        if record.kind == "state" and record.state == "verified" and record.of in when:
            read_back.setdefault(record.of, max(0.0, record.at_unix_s - when[record.of]))
    return Facts(
        commits=len(commits),
        size_bytes=commits[-1].size_bytes,
        interval_s=median(gap for gap, _ in gaps) if gaps else None,
        step_s=median(gap / steps for gap, steps in gaps) if gaps else None,
        read_back_s=median(read_back.values()) if read_back else None,
        read_backs=len(read_back),
    )


def make_plan(given: Given, facts: Facts, job: str) -> "Plan":
    """Raises ValueError for numbers that allow no plan."""
    from keepstep.checkpoint.interval.plan import Inputs, explain

    gigabytes = given.size_gb if given.size_gb is not None else (facts.size_bytes or 0) / 1e9
    alone = given.tiers == ("disk",) and facts.interval_s is not None
    return explain(
        Inputs(
            job=job,
            tiers=tuple(_tier(given, facts, place, gigabytes) for place in range(len(given.tiers))),
            beliefs=_beliefs(given),
            step_s=given.step_s if given.step_s is not None else facts.step_s,
            accelerators=given.accelerators,
            current_s=(facts.interval_s,) if alone and facts.interval_s is not None else None,
        )
    )


def _tier(given: Given, facts: Facts, place: int, gigabytes: float) -> "TierInputs":
    from keepstep.checkpoint.interval.estimate import Figure
    from keepstep.checkpoint.interval.plan import TierInputs

    name = given.tiers[place]
    survives: dict[TierName, tuple[Scope, ...]] = {
        "memory": ("process",),
        "peer": ("process", "node"),
        "disk": ("process", "node", "power") if given.shared else ("process", "power"),
        "objects": ("process", "node", "power", "site"),
    }

    def assumed(rate: TierName) -> Figure:
        seconds = gigabytes / given.nodes / RATES_GB_S[rate]
        return Figure(
            value_s=seconds, samples=0, source=f"{gigabytes:.3g} GB at {RATES_GB_S[rate]:g} GB/s for each node"
        )

    def told_so(seconds: float, option: str) -> Figure:
        return Figure(value_s=seconds, samples=1, source=option)

    stall = assumed("memory") if given.stall_s is None else told_so(given.stall_s, "--stall-s")
    durable = stall if name == "memory" else assumed(name)
    if name in given.write_s:
        durable = told_so(given.write_s[name], f"--{'write' if name == 'disk' else name}-s")
    restart = _restart(given, facts, name, durable)
    if place:
        # A save of this tier is made from the snapshot of the tier before it.
        stall = Figure(value_s=0.0, samples=0, source="made from the snapshot that is there")
    return TierInputs(name=name, survives=survives[name], stall=stall, durable=_positive(durable), restart=restart)


def _positive(figure: "Figure") -> "Figure":
    return figure if figure.value_s > 0 else msgspec.structs.replace(figure, value_s=1e-3)


def _restart(given: Given, facts: Facts, name: TierName, durable: "Figure") -> "Figure":
    from keepstep.checkpoint.interval.estimate import Figure

    if given.restart_s is not None:
        return Figure(value_s=given.restart_s, samples=1, source="--restart-s")
    if facts.read_back_s is not None and given.size_gb is None and name == "disk":
        source = f"{START_S:g} s to start, and as long as a checkpoint took to be read back"
        return Figure(value_s=START_S + facts.read_back_s, samples=facts.read_backs, source=source)
    source = f"{START_S:g} s to start, and a restore that takes as long as a write"
    return Figure(value_s=START_S + durable.value_s, samples=0, source=source)


def _beliefs(given: Given) -> tuple["Belief", ...]:
    from keepstep.checkpoint.interval.estimate import SCOPES, believe

    beliefs = tuple(believe(scope, given.nodes) for scope in SCOPES)
    if given.mtbf_h is None:
        return beliefs
    if not given.mtbf_h > 0:
        raise ValueError(f"--mtbf-h {given.mtbf_h:g}: it must be above 0")
    total = sum(belief.per_day for belief in beliefs)
    return tuple(
        msgspec.structs.replace(
            belief,
            prior=msgspec.structs.replace(
                belief.prior, per_day=24 / given.mtbf_h * belief.per_day / total, per_node=False, shape=1000.0,
                source=f"--mtbf-h {given.mtbf_h:g}, divided as published rates are",
            ),
        )
        for belief in beliefs
    )  # fmt: skip


def _print(made: "Plan", facts: Facts) -> None:
    from rich.text import Text

    from keepstep.checkpoint.interval.plan import duration, summary, tables
    from keepstep.cli.tables import show_all, table

    out: list[object] = [Text(summary(made), style="bold")]
    if facts.interval_s is not None:
        out.append(Text(f"so far: {facts.commits} checkpoints in the log, one every {duration(facts.interval_s)}"))
    out += [Text(f"warning: {warning}", style="yellow") for warning in made.warnings]
    for one in tables(made):
        drawn = table(*one.columns, flexible=one.columns)
        for row in one.rows:
            drawn.add_row(*row)
        out += [Text(f"\n{one.title}", style="bold"), drawn]
    show_all(*out)  # type: ignore[arg-type]
