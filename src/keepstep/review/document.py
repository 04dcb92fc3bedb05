"""A report as sections of paragraphs, tables and plots, and its two forms: Markdown, and one HTML page that needs nothing else.

Pure; owns the forms and the escaping. What stands in a report is papers.py.
"""

from collections.abc import Callable, Iterable, Iterator
from html import escape

from msgspec import Struct

from keepstep.review.drawing import STYLE


class Text(Struct, frozen=True):
    words: str


class Table(Struct, frozen=True):
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 0
    """So many columns from the right are numbers."""
    empty: str = "nothing"


class Pairs(Struct, frozen=True):
    """Terms and what is said of them."""

    items: tuple[tuple[str, str], ...]


class Plot(Struct, frozen=True):
    svg: str
    caption: str


Block = Text | Table | Pairs | Plot


class Section(Struct, frozen=True):
    title: str
    blocks: tuple[Block, ...]


class Document(Struct, frozen=True, kw_only=True):
    title: str
    subtitle: str
    sections: tuple[Section, ...]
    made_of: str = ""
    """What it was computed from."""


# ---- Markdown


def render_md(document: Document, plot: Callable[[int, Plot], str] | None = None) -> str:
    """``plot`` keeps the picture of a number somewhere and returns where it is; without it pictures are left out, since the
    tables say the same."""
    lines = [f"# {_line(document.title)}", "", _line(document.subtitle), ""]
    number = 0
    for section in document.sections:
        if plot is None and all(isinstance(block, Plot) for block in section.blocks):
            continue
        lines += [f"## {_line(section.title)}", ""]
        for block in section.blocks:
            if isinstance(block, Plot):
                number += 1
                if plot is not None:
                    lines += [f"![{_line(block.caption)}](<{plot(number, block)}>)", ""]
            else:
                lines += [*_md(block), ""]
    if document.made_of:
        lines += ["---", "", _line(document.made_of), ""]
    return "\n".join(lines)


def _md(block: Text | Table | Pairs) -> Iterator[str]:
    match block:
        case Text():
            yield _line(block.words)
        case Pairs():
            for term, said in block.items:
                yield f"- **{_line(term)}** {_line(said)}"
        case Table() if not block.rows:
            yield _line(block.empty)
        case Table():
            yield _row(map(_line, block.columns))
            words = len(block.columns) - block.numbers
            yield _row("---" if i < words else "---:" for i in range(len(block.columns)))
            for row in block.rows:
                yield _row(map(_line, row))


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


_MARKS = str.maketrans({c: f"\\{c}" for c in "\\`*_[]<>|#"})


def _line(words: str) -> str:
    """One line, with nothing in it that Markdown would take for its own."""
    return " ".join(words.split()).translate(_MARKS)


# ---- HTML


PAGE = (
    ":root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--quiet:#5c636b;--edge:#d5d9de;--band:#f5f6f8;--kp-quiet:#5c636b}"
    "@media(prefers-color-scheme:dark){:root{--ink:#e6e8eb;--paper:#15181c;--quiet:#a3abb3;--edge:#363c44;--band:#1d2126;"
    "--kp-quiet:#a3abb3;--kp-0:#6ea8e6;--kp-1:#e59a5c;--kp-2:#74c487;--kp-3:#bd92d8;--kp-4:#e0808c;--kp-5:#a3a9b1;"
    "--kp-6:#5cc3cb;--kp-7:#cdb04e;--kp-mark:#e0808c;--kp-hatch:#15181cb0}}"
    "body{margin:0 auto;max-width:52rem;padding:2rem 1.2rem;font:16px/1.5 system-ui,sans-serif;color:var(--ink);"
    "background:var(--paper);overflow-wrap:anywhere}"
    "h1{font-size:1.6rem;margin:0}h2{font-size:1.15rem;margin:2.2rem 0 .6rem;border-bottom:1px solid var(--edge)}"
    ".quiet,figcaption,footer{color:var(--quiet);font-size:.875rem}figure{margin:1rem 0}footer{margin-top:3rem}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.875rem;overflow-wrap:normal}"
    "th,td{padding:.3rem .6rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--edge)}"
    "th{font-weight:600;color:var(--quiet)}.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}"
    "dt{font-weight:600;margin-top:.5rem}dd{margin:0}"
    "@page{margin:16mm}@media print{:root{color-scheme:light}body{max-width:none;padding:0;font-size:10.5pt}"
    "h2{break-after:avoid}tr,figure,dd{break-inside:avoid}thead{display:table-header-group}.wide{overflow:visible}}"
)
"""How the page looks; dark where the reader's system is, and plain on paper."""


def render_html(document: Document) -> str:
    """A page that asks for nothing from anywhere, and runs nothing."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    foot = f"<footer>{escape(document.made_of)}</footer>\n" if document.made_of else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width,initial-scale=1">\n'
        f"<title>{escape(document.title)}</title>\n<style>{PAGE}{STYLE}</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(document.title)}</h1>\n<p class="quiet">{escape(document.subtitle)}</p></header>\n'
        f"<main>\n{render_sections_html(document)}</main>\n{foot}</body>\n</html>\n"
    )


def render_sections_html(document: Document) -> str:
    """The sections alone, for a page that has a frame of its own."""
    return "".join(
        f"<section>\n<h2>{escape(section.title)}</h2>\n{''.join(map(_html, section.blocks))}</section>\n"
        for section in document.sections
    )


def _html(block: Block) -> str:
    match block:
        case Text():
            return f"<p>{escape(block.words)}</p>\n"
        case Pairs():
            told = "".join(f"<dt>{escape(term)}</dt><dd>{escape(said)}</dd>\n" for term, said in block.items)
            return f"<dl>\n{told}</dl>\n"
        case Plot():
            return f"<figure>{block.svg}<figcaption>{escape(block.caption)}</figcaption></figure>\n"
        case Table() if not block.rows:
            return f'<p class="quiet">{escape(block.empty)}</p>\n'
        case Table():
            words = len(block.columns) - block.numbers
            classes = ["" if i < words else ' class="n"' for i in range(len(block.columns))]
            head = "".join(
                f'<th scope="col"{kind}>{escape(cell)}</th>' for kind, cell in zip(classes, block.columns, strict=True)
            )
            rows = "".join(
                "<tr>"
                + "".join(f"<td{k}>{escape(cell)}</td>" for k, cell in zip(classes, row, strict=True))
                + "</tr>\n"
                for row in block.rows
            )
            return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n'
