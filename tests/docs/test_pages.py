"""Pages lead somewhere: links, the index, the form of design notes, and the trees and commands that pages speak of."""

import re
from pathlib import Path

import pytest

from .pages import DOCS, ROOT, links

PAGES = sorted(
    [*DOCS.rglob("*.md"), *(ROOT / n for n in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "STYLE.md"))]
)
NOTES = sorted((DOCS / "design").glob("[0-9]*.md"))
NOTE_LINES = 60
PARTS = ("Context", "Decision", "Rejected", "Test plan")


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_links_lead_to_files(page: Path) -> None:
    assert [target for target in links(page) if not (page.parent / target).exists()] == []


def test_the_index_leads_to_every_page() -> None:
    listed = {(DOCS / target).resolve() for target in links(DOCS / "README.md")}
    assert [
        _name(page) for page in DOCS.rglob("*.md") if page.resolve() not in listed and page.name != "README.md"
    ] == []


@pytest.mark.parametrize("note", NOTES, ids=_name)
def test_a_design_note_has_its_four_parts_and_is_short(note: Path) -> None:
    text = note.read_text()
    assert tuple(re.findall(r"(?m)^## (.+)$", text)) == PARTS
    assert len(text.splitlines()) <= NOTE_LINES


def test_design_notes_are_numbered_without_gaps() -> None:
    assert [int(note.name[:4]) for note in NOTES] == list(range(1, len(NOTES) + 1))


def test_the_map_of_the_tree_names_every_package_and_nothing_that_is_not_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    source = ROOT / "src" / "keepstep"
    packages = {path.parent.name for path in source.glob("*/__init__.py")}
    named = set(re.findall(r"(?m)^  ([a-z]+)/", text))
    assert named == packages
    files = re.findall(
        r"`(?:src/keepstep/)?((?:core|wire|server|launcher|checkpoint|train|cli|sim)/[a-z_/]+\.py)`", text
    )
    assert [name for name in files if not (source / name).exists()] == []


def test_the_stages_of_the_architecture_are_those_of_the_engine() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rows = re.findall(r"(?m)^\| (\d) \| `core/([a-z]+)\.py` \|", text)
    assert list(dict.fromkeys(number for number, _ in rows)) == [str(n) for n in range(1, 10)]
    for number, name in rows:
        head = (ROOT / "src" / "keepstep" / "core" / f"{name}.py").read_text().splitlines()[0]
        assert f"Stage {number}, {name}" in head


def test_every_make_target_that_pages_name_exists() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named <= targets


def test_source_files_that_pages_name_exist() -> None:
    missing = [
        f"{_name(page)}: {name}"
        for page in PAGES
        for name in re.findall(r"`((?:src|tests|docs|bench|examples)/[\w./-]+\.(?:py|md|toml))`", page.read_text())
        if not (ROOT / name).exists()
    ]
    assert missing == []
