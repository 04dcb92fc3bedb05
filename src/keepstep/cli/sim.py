"""``keepstep sim``: many seeds of the simulator, or one. Owns how its results are told; the runs are keepstep.sim's."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Annotated

import typer

from keepstep.cli.terminal import JsonOption, fail, print_json

if TYPE_CHECKING:
    from keepstep.sim.run import Result


def sim(
    seeds: Annotated[int, typer.Option(help="How many seeds, from 0 on.", min=1)] = 100,
    seed: Annotated[int | None, typer.Option(help="Run this one seed only.", show_default=False)] = None,
    scenario: Annotated[str, typer.Option(help="A scenario of keepstep.sim, or ``list``.")] = "mixed",
    jobs: Annotated[int, typer.Option(help="Processes that run seeds beside each other.", min=1)] = 2,
    trace: Annotated[bool, typer.Option("--trace", help="With --seed: print every state transition.")] = False,
    json: JsonOption = False,
) -> None:
    """Run the engine against a simulated fleet with faults, and check it against ground truth. Exit code 1 on a violation."""
    from keepstep.sim import scenario as scenarios

    if scenario == "list":
        for name in scenarios.names():
            typer.echo(f"{name:12} {scenarios.load(name).about}")
        return
    if scenario not in scenarios.names():
        fail(f"no scenario {scenario!r}; there are: {', '.join(scenarios.names())}")
    if scenarios.load(scenario).hardware is not None:
        fail(f"{scenario} is judged by its own counts: python -m bench.diagnosis.fleet, in a checkout")
    numbers = [seed] if seed is not None else list(range(seeds))
    if trace and seed is None:
        fail("--trace prints one run: name it with --seed")
    results = list(_results(scenario, numbers, 1 if trace else jobs, trace=trace, quiet=json))
    _tell(results, trace=trace, json=json)
    if any(result.failure is not None for result in results):
        raise typer.Exit(1)


def one(task: tuple[str, int, bool]) -> "Result":
    """One run, in whichever process."""
    from keepstep.sim.run import run

    return run(task[0], task[1], trace=task[2])


def _results(scenario: str, numbers: list[int], jobs: int, *, trace: bool, quiet: bool) -> "Iterator[Result]":
    from rich.console import Console
    from rich.progress import Progress

    tasks = [(scenario, number, trace) for number in numbers]
    with Progress(console=Console(stderr=True), disable=quiet or len(tasks) < 2, transient=True) as progress:
        bar = progress.add_task(f"scenario {scenario}", total=len(tasks))
        if jobs == 1 or len(tasks) == 1:
            for task in tasks:
                yield one(task)
                progress.advance(bar)
            return
        with ProcessPoolExecutor(jobs) as pool:
            for result in pool.map(one, tasks, chunksize=2):
                yield result
                progress.advance(bar)


def _tell(results: "list[Result]", *, trace: bool, json: bool) -> None:
    from keepstep.sim.run import summary

    if json:
        print_json({"summary": summary(results), "results": results})
        return
    for result in results:
        if trace and result.failure is None:
            typer.echo("\n".join(result.trace))
        if result.failure is not None:
            typer.echo("\n".join(result.trace))
            typer.echo(f"seed {result.seed}: {result.failure.kind} {result.failure.name}")
            typer.echo(result.failure.text)
            typer.echo(f"reproduce: keepstep sim --scenario {result.scenario} --seed {result.seed} --trace\n")
    told = summary(results)
    failed = sum(1 for result in results if result.failure is not None)
    typer.echo(
        f"{len(results)} seeds, {failed} failed; {told['faults']:.0f} faults, {told['incidents']:.0f} incidents: "
        f"{told['recovered']:.0f} recovered, {told['escalated']:.0f} escalated, {told['no_fault']:.0f} no fault"
    )
    if len(results) == 1:
        typer.echo(
            f"digest {results[0].digest}, {results[0].entries} journal entries, {results[0].simulated_s:.0f} s simulated"
        )
