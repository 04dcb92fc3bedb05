"""Reads Markdown pages as far as the checks need it: sections and tables."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"


def sections(path: Path) -> dict[str, str]:
    """Heading of the second level -> what stands under it."""
    parts = re.split(r"(?m)^## (.+)$", path.read_text())
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(text: str) -> dict[str, list[str]]:
    """First cell -> the other cells, of the first table in a text, without its head."""
    rows = [
        [cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line.startswith("|")
    ]
    return {first: rest for first, *rest in rows[2:]}


def links(path: Path) -> list[str]:
    """Targets of relative links, without anchors."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    found = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text)
    return [target for target in found if not re.match(r"[a-z]+:", target)]
