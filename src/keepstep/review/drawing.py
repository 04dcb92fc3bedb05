"""The parts of our plots: elements, scales, ticks, patterns, colours. Pure text; owns no layout of a plot (see plots.py).

Everything that a caller hands in is escaped. No script, no style attribute: a page with a strict content policy shows it.
Colours are presentation attributes that the custom properties of STYLE override; a pattern or a dash says the same as a colour.
"""

import hashlib
import math
from collections.abc import Sequence
from html import escape
from typing import Literal

from keepstep.review.wording import day, duration, number

Kind = Literal["number", "seconds", "share", "time", "day"]

WIDTH = 720
NARROW = 340
"""For a phone held upright, where what is drawn WIDTH wide would be too small to read."""
LEAST_SPAN = 1e-200
"""Smaller differences are none: they could not be divided."""
COLOURS = ("#2f6fb2", "#c8641b", "#3b8f4d", "#8a56a8", "#b03a48", "#6b6f76", "#1c8c94", "#9a7b1f")
DASHES = ("", "6 3", "2 3", "8 3 2 3", "1 2", "10 4", "4 2 1 2", "3 6")
_HATCH = (
    "",
    "M0 8L8 0M-2 2L2 -2M6 10L10 6",
    "M0 0L8 8M-2 6L2 10M6 -2L10 2",
    "M0 4H8",
    "M4 0V8",
    "M0 4H8M4 0V8",
    "M2 2h1v1h-1zM6 6h1v1h-1z",
    "M0 8L8 0M0 0L8 8",
)

STYLE = (
    ".kp{display:block;max-width:100%;height:auto;font:12px/1.3 system-ui,sans-serif}"
    ".kp text{fill:var(--kp-text,currentColor)}"
    ".kp .kp-quiet{fill:var(--kp-quiet,#6b6f76)}"
    ".kp .kp-axis{stroke:var(--kp-axis,#8a8f98)}"
    ".kp .kp-grid{stroke:var(--kp-grid,#8a8f9840)}"
    ".kp .kp-mark{stroke:var(--kp-mark,#b03a48)}"
    ".kp .kp-hatch{stroke:var(--kp-hatch,#ffffffb0)}"
    + "".join(
        f".kp .kp-f{i}{{fill:var(--kp-{i},{colour})}}.kp .kp-s{i}{{stroke:var(--kp-{i},{colour})}}"
        for i, colour in enumerate(COLOURS)
    )
    + "@media print{.kp{break-inside:avoid}}"
)
"""CSS to be put once into a page that shows plots. Set ``--kp-text``, ``--kp-axis``, ``--kp-0`` … to theme them."""


def element(name: str, inner: str = "", /, **attributes: object) -> str:
    """One SVG element. ``inner`` is markup; attribute values are escaped, ``_`` in a name stands for ``-``."""
    told = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value), quote=True)}"'
        for key, value in attributes.items()
        if value != ""
    )
    return f"<{name}{told}>{inner}</{name}>" if inner else f"<{name}{told}/>"


def _short(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text(x: float, y: float, words: str, anchor: str = "start", quiet: bool = False, limit: int = 0) -> str:
    """``limit``: cut after so many characters; the whole is told as a title."""
    shown = words if not limit or len(words) <= limit else words[: limit - 1] + "…"
    whole = element("title", escape(words)) if shown != words else ""
    anchor = "" if anchor == "start" else anchor
    return element("text", whole + escape(shown), x=x, y=y, text_anchor=anchor, class_="kp-quiet" if quiet else "")


def rule(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    stroke = "#b03a48" if class_ == "kp-mark" else "#8a8f98"
    width = 1.5 if class_ == "kp-mark" else 1
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_, stroke=stroke, stroke_width=width)


def picture(title: str, desc: str, height: float, body: Sequence[str], width: int = WIDTH) -> str:
    """The whole ``<svg>``, with its name for whoever does not see it."""
    name = name_of(title, desc, width)
    head = element("title", escape(title), id=f"{name}-t") + element("desc", escape(desc) or "–", id=f"{name}-d")
    return element(
        "svg",
        head + "".join(body),
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {round(height)}",
        width=width,
        height=round(height),
        class_="kp",
        role="img",
        aria_labelledby=f"{name}-t {name}-d",
    )


def name_of(title: str, desc: str, width: int = WIDTH) -> str:
    """Prefix of the ids of one plot."""
    return "kp" + hashlib.blake2b(f"{title}\0{desc}\0{width}".encode(), digest_size=5).hexdigest()


def nothing(title: str, desc: str, why: str = "nothing to show") -> str:
    return picture(title, desc, 60, [text(WIDTH / 2, 34, why, "middle", quiet=True)])


def patterns(name: str, count: int) -> str:
    """Fills 0 … ``count`` - 1 of a plot, as ``url(#<name>-<i>)``."""
    made = []
    for i in range(min(count, len(COLOURS))):
        ground = element("rect", width=8, height=8, fill=COLOURS[i], class_=f"kp-f{i}")
        marks = element("path", d=_HATCH[i], fill="none", stroke="#ffffff", stroke_width=1.2, class_="kp-hatch")
        made.append(
            element(
                "pattern",
                ground + (marks if _HATCH[i] else ""),
                id=f"{name}-{i}",
                width=8,
                height=8,
                patternUnits="userSpaceOnUse",
            )
        )
    return element("defs", "".join(made)) if made else ""


def fill(name: str, index: int) -> str:
    return f"url(#{name}-{index % len(COLOURS)})"


def legend(name: str, names: Sequence[str], top: float) -> tuple[str, float]:
    """Rows of (swatch, name), and where they end."""
    made, x, y = [], 8.0, top
    for index, words in enumerate(names):
        width = 30 + 7.2 * min(len(words), 40)
        if x + width > WIDTH and x > 8:
            x, y = 8.0, y + 18
        made.append(element("rect", x=x, y=y - 10, width=12, height=12, fill=fill(name, index)))
        made.append(text(x + 18, y, words, limit=40))
        x += width
    return "".join(made), y + 14


# ---- scales


def ticks(low: float, high: float, wanted: int = 5, kind: Kind = "number") -> list[float]:
    """Round values from ``low`` to ``high``, about so many."""
    if high - low < LEAST_SPAN:
        return [low]
    step = _step((high - low) / max(1, wanted), kind)
    first = math.ceil(low / step - 1e-9)
    return [round((first + i) * step, 10) for i in range(math.floor(high / step + 1e-9) - first + 1)]


def _step(least: float, kind: Kind) -> float:
    ladder: Sequence[float] = ()
    if kind == "day":
        ladder = (86_400, 2 * 86_400, 7 * 86_400, 14 * 86_400, 28 * 86_400, 91 * 86_400, 364 * 86_400)
    elif kind in ("time", "seconds"):
        ladder = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 28_800, 86_400)
    if ladder and least > (0.5 if kind != "day" else 0) and least <= ladder[-1]:
        return float(next(step for step in ladder if step >= least))
    power = 10.0 ** math.floor(math.log10(least))
    return next(power * nice for nice in (1.0, 2.0, 5.0, 10.0) if power * nice >= least * (1 - 1e-9))


def label(value: float, kind: Kind) -> str:
    match kind:
        case "day":
            return day(value)
        case "time" | "seconds":
            return "0" if value == 0 else duration(value)
        case "share":
            return f"{100 * value:.3g} %"
        case _:
            return number(value)
