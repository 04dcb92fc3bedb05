"""The loss curve and the recoveries as a picture. Owns its look; optional, since matplotlib is."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keepstep.demo.driver import Act
from keepstep.demo.stages import DIAGNOSING, STAGES, segments

if TYPE_CHECKING:
    from keepstep.demo.report import Outcome

_INK = {
    "open": "#8e6bbf", "isolating": "#d1495b", "selecting": "#edae49", "placing": "#66a5ad", "restarting": "#30638e",
    "verifying": "#5b9a5b", "waiting": "#bbbbbb",
}  # fmt: skip


def draw(path: Path, acts: Sequence[Act], outcome: "Outcome") -> bool:
    """False where there is no matplotlib, or nothing to draw."""
    if find_spec("matplotlib") is None or not outcome.losses:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5.4 + 0.42 * len(acts)), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    upper, lower = figure.subplots(2, 1, height_ratios=(4.2, 0.8 + 0.42 * len(acts)))
    _draw_losses(upper, acts, outcome)
    _draw_recoveries(lower, acts)
    figure.savefig(path)
    return True


def _draw_losses(axes: Any, acts: Sequence[Act], outcome: "Outcome") -> None:
    reference = outcome.reference.losses
    axes.plot(
        [one.step for one in reference], [one.value for one in reference], color="#f2b880", linewidth=6,
        solid_capstyle="round", label="unfaulted run",
    )  # fmt: skip
    for index, generation in enumerate(sorted({one.generation for one in outcome.losses})):
        lived = [one for one in outcome.losses if one.generation == generation]
        axes.plot(
            [one.step for one in lived], [one.value for one in lived], color="#1d3557", linewidth=1.2,
            label="this run, through all faults" if index == 0 else None,
        )  # fmt: skip
    for number, act in enumerate(acts, start=1):
        if act.incident is None:
            continue
        at = max(act.step, act.incident.step_before)
        axes.axvline(at, color="#d1495b", linewidth=1, linestyle=(0, (3, 2)))
        axes.annotate(
            str(number), (at, 1.0), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points",
            ha="center", color="white", fontsize=9, fontweight="bold",
            bbox={"boxstyle": "circle,pad=0.25", "color": "#d1495b"},
        )  # fmt: skip
    axes.set_xlabel("step")
    axes.set_ylabel("training loss")
    axes.set_title("the same losses and the same final weights, bit for bit" if not outcome.problems else "NOT as promised",
                   loc="left", pad=24, fontweight="bold")  # fmt: skip
    axes.legend(frameon=False)
    axes.margins(x=0.01)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_recoveries(axes: Any, acts: Sequence[Act]) -> None:
    """A logarithmic axis would falsify lengths, a common linear one would hide the quick: each bar is cut to the median's
    scale, and says its whole time."""
    totals = sorted(act.incident.downtime_s for act in acts if act.incident is not None)
    limit_s = min(totals[-1], 2.5 * totals[len(totals) // 2]) if totals else 1.0
    named: set[str] = set()
    for row, act in enumerate(acts):
        if act.incident is None:
            continue
        for segment in segments(act.incident):
            length_s = min(segment.seconds, limit_s - segment.begin_s)
            if length_s <= 0:
                continue
            label = DIAGNOSING if segment.stage == "open" else segment.stage
            axes.barh(
                row, length_s, left=segment.begin_s, height=0.62, color=_INK[segment.stage],
                label=None if label in named else label,
            )  # fmt: skip
            named.add(label)
        total_s = act.incident.downtime_s
        cut = total_s > limit_s
        axes.text(
            min(total_s, limit_s), row, f"  {'… ' if cut else ''}{total_s:.2f} s, {act.incident.lost_steps} steps lost",
            va="center", fontsize=9, clip_on=False,
        )  # fmt: skip
    axes.set_yticks(range(len(acts)), [f"{number}  {act.fault.title}" for number, act in enumerate(acts, start=1)])
    axes.invert_yaxis()
    axes.set_xlim(0, limit_s * 1.25)
    axes.set_xlabel("seconds from the first evidence to the first new step of all ranks")
    axes.spines[["top", "right"]].set_visible(False)
    order = [DIAGNOSING if stage == "open" else stage for stage in (*STAGES, "waiting")]
    pairs = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    names = [name for name in order if name in pairs]
    axes.legend([pairs[name] for name in names], names, frameon=False, ncols=len(names), loc="lower left",
                bbox_to_anchor=(0, 1), borderaxespad=0, fontsize=9)  # fmt: skip
