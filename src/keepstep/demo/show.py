"""The whole demo from begin to end. Owns the order of its parts and that nothing is left behind."""

import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from rich.console import Console

from keepstep.demo.driver import DemoFailed, Driver
from keepstep.demo.faults import Fault, spares_for
from keepstep.demo.losses import finals, losses
from keepstep.demo.patience import be_patient
from keepstep.demo.plan import DemoPlan, OutDirectory, OutDirectoryTaken, default_steps, example_script
from keepstep.demo.processes import kill_at_once, left_behind, wait_gone
from keepstep.demo.proof import problems_of_act, problems_of_losses, problems_of_weights
from keepstep.demo.reference import Reference, run_reference
from keepstep.demo.report import Outcome, show_report
from keepstep.demo.view import Lines, LiveView

INTERRUPTED = 130


def run_demo(faults: tuple[Fault, ...], *, steps: int | None, out: Path, keep: bool, plain: bool) -> int:
    """The exit code of ``keepstep demo``."""
    live = sys.stdout.isatty() and not plain
    console = (
        Console(highlight=False) if live else Console(highlight=False, width=120, no_color=not sys.stdout.isatty())
    )
    try:
        with OutDirectory(out) as directory:
            plan = DemoPlan(
                out=out, script=example_script(), steps=steps or default_steps(len(faults)), spares=spares_for(faults)
            )
            plan.state.create()
            be_patient(plan.state)
            with _interruptible():
                code = _show(console, plan, faults, live=live)
            directory.tidy(keep=keep)
            return code
    except (OutDirectoryTaken, FileNotFoundError, DemoFailed) as error:
        print(f"keepstep: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("keepstep: interrupted; everything that the demo started has been ended", file=sys.stderr)
        return INTERRUPTED


def _show(console: Console, plan: DemoPlan, faults: tuple[Fault, ...], *, live: bool) -> int:
    view = LiveView(console, plan.steps) if live else Lines(console, plan.steps)
    with view:
        view.say(f"reference run of {plan.steps} steps, undisturbed: what the result must be")
        with _nothing_left(plan.reference()):
            reference = run_reference(plan.reference(), view.progress)
        driver = Driver(plan, faults, view)
        problems: list[str] = []
        exit_code = 1
        with _nothing_left(plan, problems):
            try:
                exit_code = driver.run()
            except DemoFailed as error:
                problems.append(str(error))
            finally:
                driver.close()
    outcome = _judge(plan, driver, reference, problems, exit_code)
    show_report(console, plan.out, driver.watch, driver.acts, outcome)
    return 1 if outcome.problems else 0


def _judge(plan: DemoPlan, driver: Driver, reference: Reference, problems: list[str], exit_code: int) -> Outcome:
    seen, final = losses(plan.rank_logs), finals(plan.final)
    found = [*problems]
    if exit_code != 0 and not problems:
        found.append(f"keepstep run ended with code {exit_code}; see {plan.log}")
    for act in driver.acts:
        found += problems_of_act(act, driver.watch)
    unplanned = len(driver.watch.faults()) - sum(act.incident is not None for act in driver.acts)
    if unplanned > 0:
        found.append(f"{unplanned} incidents more than faults; see keepstep incidents --state-dir {plan.state.path}")
    found += problems_of_losses(reference, seen)
    found += problems_of_weights(reference.finals, final, plan.steps)
    return Outcome(reference=reference, losses=seen, finals=final, problems=found, exit_code=exit_code)


@contextlib.contextmanager
def _nothing_left(plan: DemoPlan, problems: list[str] | None = None) -> Iterator[None]:
    """Whatever happens inside: afterwards no process of the job lives. One that had to be killed is a broken promise."""
    try:
        yield
    finally:
        strays = left_behind(plan)
        if strays and wait_gone(strays, 2.0):
            strays = []  # they were on their way out
        kill_at_once(strays)
        wait_gone(strays)
        if strays and problems is not None:
            problems.append(f"processes were left behind by {plan.job} and have been killed: {[x.pid for x in strays]}")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does: in order."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
