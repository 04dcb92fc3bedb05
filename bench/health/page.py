"""The tables of ``docs/reference/health-score.md``, from the code and the weights in use. Owns their form."""

from pathlib import Path

from keepstep.core.health.features import FEATURES
from keepstep.core.health.forecast import Model
from keepstep.core.health.level import COUNTERS, VENDOR_NAMES
from keepstep.core.health.report import TERM_TEXTS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "health-score.md"
BEGIN, END = "<!-- tables -->", "<!-- /tables -->"


def write(model: Model) -> None:
    old = PAGE.read_text()
    PAGE.write_text(old[: old.index(BEGIN)] + tables(model) + old[old.index(END) + len(END) :])


def tables(model: Model) -> str:
    return "\n\n".join(
        [BEGIN, "## Counters", _counters(), "## Weights", _weights(model), "## Base rates", _bases(model), END]
    )


def _counters() -> str:
    lines = [
        "| counter | what | unit | remarkable a day | vendors' names that mean the same |",
        "|---|---|---|---|---|",
    ]
    for name, counter in COUNTERS.items():
        scale = f"{counter.scale:g}" if counter.shape == "counter" else "gauge"
        vendors = ", ".join(f"`{vendor}`" for vendor, own in VENDOR_NAMES.items() if own == name and vendor != name)
        lines.append(f"| `{name}` | {counter.text} | {counter.unit} | {scale} | {vendors} |")
    return "\n".join(lines)


def _weights(model: Model) -> str:
    lines = ["| feature | means | first hour | next 5 h | next 18 h |", "|---|---|---|---|---|"]
    for name in FEATURES:
        term = name.split(".")[1]
        if name in model.recurrence:
            values = [model.recurrence[name]] * 3
        else:
            values = list(model.weights.get(name, (0.0, 0.0, 0.0)))
        told = " | ".join(f"{each:.3f}" for each in values)
        lines.append(f"| `{name}` | {TERM_TEXTS[term]} | {told} |")
    kept = " | ".join(f"{each:.3f}" for each in model.recurrence_weight)
    lines.append(f"| | factor on all of `past_failures` | {kept} |")
    return "\n".join(lines)


def _bases(model: Model) -> str:
    lines = [
        "| kind | failures an hour | in a node | intercept, first hour | next 5 h | next 18 h |",
        "|---|---|---|---|---|---|",
    ]
    for kind, base in model.base_per_h.items():
        told = " | ".join(f"{each:.3f}" for each in model.intercepts[kind])
        lines.append(f"| {kind} | {base:.3g} | {model.per_node[kind]} | {told} |")
    return "\n".join(lines)
