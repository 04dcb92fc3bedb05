"""The end of the demo: incident reports, time lines, losses, the proof. Owns their look; the judgement is proof.py's."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from keepstep.cli.incidents import render
from keepstep.cli.terminal import seconds, step
from keepstep.core.incident import Incident
from keepstep.demo import picture
from keepstep.demo.driver import Act
from keepstep.demo.losses import Final, Loss, redone
from keepstep.demo.reference import Reference
from keepstep.demo.stages import COLOURS, DIAGNOSING, NOTE, STAGES, segments
from keepstep.demo.watch import Watch
from keepstep.server.desk import Desk
from keepstep.server.queries import incident

BAR_COLUMNS = 46
CURVE_COLUMNS, CURVE_ROWS = 72, 12


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that the end of the demo speaks of."""

    reference: Reference
    losses: list[Loss]
    finals: list[Final]
    problems: list[str]
    exit_code: int


def show_report(console: Console, out: Path, watch: Watch, acts: Sequence[Act], outcome: Outcome) -> None:
    """To the terminal, and the same without colours to ``report.txt``; the picture to ``loss.png``."""
    drawn = picture.draw(out / "loss.png", acts, outcome)
    parts = [
        *_incidents(watch, acts),
        *_time_lines(acts),
        *_curve(acts, outcome, drawn),
        *_proof(acts, outcome),
    ]
    with (out / "report.txt").open("w", encoding="utf-8") as file:
        paper = Console(file=file, width=120, highlight=False, color_system=None)
        for part in parts:
            console.print(part)
            paper.print(part)
    console.print(
        f"\nkept in {out}: report.txt, {'loss.png, ' if drawn else ''}run.log, state/ (journal and rank logs)"
    )
    console.print(f"read on with: keepstep incidents --state-dir {out / 'state'}")


def _rule(title: str) -> list[RenderableType]:
    return [Text(), Rule(Text(title, style="bold"), align="left", style="dim")]


def _incidents(watch: Watch, acts: Sequence[Act]) -> list[RenderableType]:
    desk = Desk(watch.books, None, watch.books.history.last_s)
    parts: list[RenderableType] = []
    for number, act in enumerate(acts, start=1):
        parts += _rule(f"{number}. {act.fault.title}")
        if act.done is not None:
            parts.append(Text(f"done to it: {act.done.text}", style="italic"))
        if act.incident is not None:
            parts += render(incident(desk, act.incident.id))
    return parts


# ---- time lines


def _time_lines(acts: Sequence[Act]) -> list[RenderableType]:
    """Each bar has its own scale, or the slowest recovery would hide all others."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("", "fault", "down", "from the first evidence to the first new step", "lost", "restored from"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("", "down", "lost") else "left")
    for number, act in enumerate(acts, start=1):
        found = act.incident
        if found is None:
            table.add_row(str(number), act.fault.name, "–", "not recovered", "–", "–")
            continue
        table.add_row(
            str(number), act.fault.name, seconds(found.downtime_s), bar(found), str(found.lost_steps), _source(found)
        )
    legend = Text("  ")
    for stage in STAGES:
        legend.append(f" {_name(stage)[0]} ", style=_ink(stage))
        legend.append(f" {_name(stage)}: {NOTE[stage]}\n  ")
    return [*_rule("the time line of each recovery"), table, Text(), legend]


def _name(stage: str) -> str:
    return DIAGNOSING if stage == "open" else stage


def bar(found: Incident) -> Text:
    """Segments in proportion; what took any time at all gets a column. Its first letter tells a stage without colours."""
    cut = segments(found)
    total_s = sum(segment.seconds for segment in cut) or 1.0
    line = Text()
    for segment in cut:
        columns = max(1, round(segment.seconds / total_s * BAR_COLUMNS))
        name = _name(segment.stage)
        fitting = (label for label in (f" {name} {segment.seconds:.2f}", f" {name}") if len(label) < columns)
        line.append(next(fitting, name[0]).ljust(columns), style=_ink(segment.stage))
    return line


def _ink(stage: str) -> str:
    return f"black on {COLOURS[stage]}"


def _source(found: Incident) -> str:
    restore = next((a.restore for a in reversed(found.attempts) if a.restore is not None), None)
    if restore is None:
        return "nothing"
    return f"step {step(restore.step)}, {'memory' if restore.tier == 'ram' else 'disk'}"


# ---- losses


def _curve(acts: Sequence[Act], outcome: Outcome, drawn: bool) -> list[RenderableType]:
    title = "the loss, as rank 0 logged it; the numbers are the faults"
    parts = [*_rule(title), Text(text_curve(outcome.losses, acts))]
    if drawn:
        parts.append(Text("the same as a picture, beside the reference: loss.png"))
    else:
        parts.append(Text("for a picture: pip install 'keepstep[demo]', which brings matplotlib", style="dim"))
    return parts


def text_curve(seen: Sequence[Loss], acts: Sequence[Act]) -> str:
    """A chart in characters: mean loss per column over the steps, faults as numbers above it."""
    if not seen:
        return "  no step was logged"
    last = max(loss.step for loss in seen)
    by_column: dict[int, list[float]] = {}
    for loss in seen:
        by_column.setdefault((loss.step - 1) * CURVE_COLUMNS // last, []).append(loss.value)
    means = {column: sum(values) / len(values) for column, values in by_column.items()}
    low, high = min(means.values()), max(means.values())
    span = (high - low) or 1.0
    marks = [" "] * CURVE_COLUMNS
    for number, act in enumerate(acts, start=1):
        if act.step >= 0:
            marks[min(max(act.step - 1, 0) * CURVE_COLUMNS // last, CURVE_COLUMNS - 1)] = str(number % 10)
    rows = [[" "] * CURVE_COLUMNS for _ in range(CURVE_ROWS)]
    for column, mean in means.items():
        rows[CURVE_ROWS - 1 - round((mean - low) / span * (CURVE_ROWS - 1))][column] = "•"
    lines = [f"         {''.join(marks)}"]
    for index, row in enumerate(rows):
        value = high - span * index / (CURVE_ROWS - 1)
        lines.append(f"  {value:5.2f} ┤{''.join(row)}")
    lines.append(f"        └{'─' * CURVE_COLUMNS}")
    lines.append(f"         step 1{str(last).rjust(CURVE_COLUMNS - 6)}")
    return "\n".join(lines)


# ---- the proof


def _proof(acts: Sequence[Act], outcome: Outcome) -> list[RenderableType]:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rank", "step", "sha256 of the final weights, unfaulted run", "the same, after all faults"):
        table.add_column(name, no_wrap=True)
    after = {final.rank: final for final in outcome.finals}
    for final in outcome.reference.finals:
        mine = after.get(final.rank)
        equal = mine is not None and mine.digest == final.digest
        table.add_row(
            str(final.rank),
            str(final.step),
            f"{final.digest[:32]}…",
            Text(
                "none" if mine is None else "equal" if equal else f"{mine.digest[:32]}…",
                style="green" if equal else "red",
            ),
        )
    parts = [*_rule("the proof"), table, Text(), *_verdict(acts, outcome)]
    return parts


def _verdict(acts: Sequence[Act], outcome: Outcome) -> list[RenderableType]:
    if outcome.problems:
        wrong = "\n".join(f"  ✗ {problem}" for problem in outcome.problems)
        return [Text(f"NOT as promised:\n{wrong}", style="bold red")]
    down_s = sum(act.incident.downtime_s for act in acts if act.incident is not None)
    digest = outcome.finals[0].digest
    return [
        Text(f"{len(acts)} faults, {len(acts)} recoveries, {seconds(down_s)} down in all.", style="bold green"),
        Text(f"{redone(outcome.losses)} steps were computed twice, with the same loss each time."),
        Text(f"The final weights of all ranks equal those of the unfaulted run, bit for bit: sha256 {digest}"),
    ]
