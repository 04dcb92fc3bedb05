"""Shows the demo while it runs: a live screen, or lines. Owns the look; all it knows comes from the watch and the acts."""

import time
from collections import deque
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live as Screen
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from keepstep.cli.terminal import seconds, step
from keepstep.core.incident import Incident
from keepstep.demo.driver import Act
from keepstep.demo.plan import WORLD_SIZE
from keepstep.demo.stages import COLOURS, DIAGNOSING, STAGES
from keepstep.demo.watch import Watch
from keepstep.server.views import LauncherView, RankView

REFRESH_S = 0.125
LINES = 9
"""Of the newest events on the screen."""
_BARS = "▁▂▃▄▅▆▇█"
_PHASE_STYLE = {"step": "green", "checkpoint": "cyan", "evaluate": "cyan", "restore": "yellow", "start": "yellow"}
_ACT_MARK = {
    "waiting": ("·", "dim"),
    "injecting": ("▶", "yellow"),
    "recovering": ("▶", "red"),
    "recovered": ("✓", "green"),
}


class Lines:
    """For ``--plain`` and for pipes: one line per event, with the time since the start."""

    def __init__(self, console: Console, steps: int) -> None:
        self._console, self._steps = console, steps
        self._begun_s = time.time()
        self._told_step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass

    def say(self, text: str) -> None:
        self._line(time.time(), f"— {text}")

    def progress(self, done: int) -> None:
        if done - self._told_step >= 50 or done == self._steps:
            self._told_step = done
            self.say(f"reference run: step {done} of {self._steps}")

    def show(self, watch: Watch, acts: list[Act]) -> None:
        for event in watch.new_events:
            self._line(event.at_s, event.text)
        watch.new_events.clear()

    def _line(self, at_s: float, text: str) -> None:
        self._console.print(Text(f"{at_s - self._begun_s:7.2f} s  {text}"), soft_wrap=True)


class LiveView:
    """The live screen. Use as a context manager."""

    def __init__(self, console: Console, steps: int) -> None:
        self._steps = steps
        self._begun_s = time.time()
        self._said: deque[tuple[float, str]] = deque(maxlen=LINES)
        self._losses: dict[int, float] = {}
        self._shown_s = 0.0
        self._screen = Screen(Text("starting …"), console=console, refresh_per_second=10, transient=True)

    def __enter__(self) -> Self:
        self._screen.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._screen.stop()

    def say(self, text: str) -> None:
        self._said.append((time.time(), f"— {text}"))

    def progress(self, done: int) -> None:
        bar = _bar(done / self._steps, 40)
        self._screen.update(
            Text.assemble(("keepstep demo", "bold"), "  first the run that nothing happens to, to compare with\n\n  ")
            + bar
            + Text(f"  step {done} of {self._steps}")
        )

    def show(self, watch: Watch, acts: list[Act]) -> None:
        self._said.extend((event.at_s, event.text) for event in watch.new_events)
        watch.new_events.clear()
        if watch.live is not None and watch.live.loss is not None and watch.live.step > 0:
            self._losses[watch.live.step] = watch.live.loss
        now_s = time.monotonic()
        if now_s - self._shown_s >= REFRESH_S:
            self._shown_s = now_s
            self._screen.update(self.render(watch, acts))

    # ---- the picture

    def render(self, watch: Watch, acts: list[Act]) -> RenderableType:
        middle = Table.grid(expand=True, padding=(0, 1))
        middle.add_column(ratio=1)
        middle.add_column(ratio=1)
        middle.add_row(
            Group(_ranks(watch), Text(), _nodes(watch)),
            Group(_acts(acts)),
        )
        return Panel(
            Group(
                self._headline(watch), Text(), middle, Text(), _recovery(watch), Text(), self._events(),
            ),
            title="keepstep demo", title_align="left", border_style="red" if watch.leading() else "green",
        )  # fmt: skip

    def _headline(self, watch: Watch) -> RenderableType:
        job, live = watch.job, watch.live
        # After the server's death the checkpoint may be the newest that is known of the progress.
        done = max(watch.step, job.committed_step if job is not None else 0, 0)
        state = job.state.value if job is not None else "starting"
        loss = f"loss {live.loss:.3f}" if live is not None and live.loss is not None else "loss –"
        age = live.checkpoint_age_s if live is not None else None
        checkpoint = f"checkpoint {step(job.committed_step) if job is not None else '–'}"
        checkpoint += f", {age:.0f} s old" if age is not None else ""
        generation = job.generation if job is not None else 0
        line = Table.grid(padding=(0, 2))
        for _ in range(5):
            line.add_column(no_wrap=True)
        line.add_row(
            Text(state, style="bold green" if state == "running" else "bold yellow"),
            Text(f"generation {generation}"),
            _bar(done / self._steps, 20) + Text(f" step {done} of {self._steps}"),
            Text(loss) + Text(f" {self._spark()}", style="cyan"),
            Text(checkpoint),
        )
        return line

    def _spark(self) -> str:
        values = [self._losses[key] for key in sorted(self._losses)]
        if len(values) < 2:
            return ""
        width = 20
        picked = [values[index * len(values) // width] for index in range(width)] if len(values) > width else values
        low, high = min(values), max(values)
        span = (high - low) or 1.0
        return "".join(_BARS[min(7, int((value - low) / span * 8))] for value in picked)

    def _events(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", style="dim", no_wrap=True)
        table.add_column(no_wrap=True, overflow="ellipsis")
        lines = list(self._said)[-LINES:]
        for at_s, text in lines:
            table.add_row(f"{at_s - self._begun_s:.1f} s", Text(text, style="bold" if text.startswith("—") else ""))
        for _ in range(LINES - len(lines)):
            table.add_row("", "")
        return table


def _bar(share: float, width: int) -> Text:
    filled = round(min(max(share, 0.0), 1.0) * width)
    return Text.assemble(("━" * filled, "green"), ("━" * (width - filled), "grey37"))


def _ranks(watch: Watch) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name, justify in (("rank", "right"), ("node", "left"), ("pid", "right"), ("phase", "left")):
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for name in ("step", "loss"):
        table.add_column(name, justify="right", min_width=6)
    pids = watch.pids()
    seen = {view.rank: view for view in watch.live.ranks} if watch.live is not None else {}
    for rank in range(WORLD_SIZE):
        view = seen.get(rank)
        if view is None:
            table.add_row(str(rank), "–", "–", Text("–" if watch.live else "no server answers", style="dim"), "–", "–")
            continue
        loss = f"{view.loss:.3f}" if view.loss is not None else "–"
        table.add_row(
            str(rank), _short(view.node, watch), str(pids.get(rank, "–")), _phase(view), step(view.step), loss
        )
    return table


def _phase(view: RankView) -> Text:
    if view.state == "ended":
        return Text("ended", style="bold red")
    if view.state == "T":
        return Text("stopped", style="bold red")
    if not view.phase:
        return Text("–", style="dim")
    return Text(view.phase, style=_PHASE_STYLE.get(view.phase, ""))


def _short(node: str, watch: Watch) -> str:
    prefix = f"{watch.job.id}-" if watch.job is not None else ""
    return node.removeprefix(prefix)


def _nodes(watch: Watch) -> Text:
    if watch.live is None:
        return Text("nodes   –", style="dim")
    placed = {view.node for view in watch.live.ranks}
    line = Text("nodes   ", style="dim")
    for node in watch.live.nodes:
        what, style = _node_state(node, placed, watch)
        line.append(f"{_short(node.node, watch)} {what}   ", style=style)
    return line


def _node_state(node: LauncherView, placed: set[str], watch: Watch) -> tuple[str, str]:
    held = [r.id for r in watch.books.world.resources.values() if r.node == node.node and not r.allocatable]
    if node.gone:
        return "✗ lost", "red"
    if held:
        return "⊘ held", "yellow"
    if not node.reachable:
        return "? silent", "yellow"
    return ("● in use", "green") if node.node in placed else ("○ spare", "cyan")


def _acts(acts: list[Act]) -> RenderableType:
    table = Table.grid(expand=True, padding=(0, 1))
    table.add_column(min_width=1, no_wrap=True)
    table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    table.add_column(min_width=7, no_wrap=True, justify="right")
    for act in acts:
        mark, style = _ACT_MARK[act.state]
        took = act.incident.downtime_s if act.state == "recovered" and act.incident is not None else None
        table.add_row(Text(mark, style=style), Text(act.fault.title, style=style), Text(seconds(took) if took else ""))
    return table


def _recovery(watch: Watch) -> RenderableType:
    """The newest incident: its stages as they pass, and what it is about."""
    faults = watch.faults()
    if not faults:
        return Text("no incident yet\n", style="dim")
    incident = faults[-1]
    stages = Text()
    for name in STAGES:
        at_work = incident.open and name == incident.state.value
        spent = incident.stage_s.get(name)
        label = f" {DIAGNOSING if name == 'open' else name}{f' {spent:.2f}' if spent is not None else ''} "
        stages.append(label, style=f"bold black on {COLOURS[name]}" if at_work else COLOURS[name] if spent else "dim")
        stages.append("▸" if name != STAGES[-1] else "", style="dim")
    state = Text(f" {incident.state.value} ", style="bold black on green" if not incident.open else "bold black on red")
    about = _about(incident).replace(f"{incident.job}-", "")
    head = Text.assemble((f"{incident.id} ", "bold"), state, f"  {_down(incident)}  {about}")
    head.no_wrap, head.overflow = True, "ellipsis"
    stages.no_wrap = True
    return Group(head, stages)


def _down(incident: Incident) -> str:
    return f"{incident.downtime_s:.2f} s" if not incident.open else f"{max(0.0, time.time() - incident.opened_s):.2f} s"


def _about(incident: Incident) -> str:
    diagnosis = incident.diagnosis
    if diagnosis is None:
        return "the evidence is being joined"
    return f"{diagnosis.cause.value} ({diagnosis.confidence:.0%}): {diagnosis.summary}"
