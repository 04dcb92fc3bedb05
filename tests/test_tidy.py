"""House rules that a linter does not know: sizes, names, docstrings, tests without patches, and the import contract."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TREES = ("src", "tests", "bench", "examples", "docs")
FILE_LINES = 500
FUNCTION_LINES = 60
FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "base")
IMPORT_CONTRACT_DEADLINE_S = 120

Function = ast.FunctionDef | ast.AsyncFunctionDef

FILES = sorted(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))
SOURCES = [path for path in FILES if path.is_relative_to(ROOT / "src")]
TESTS = [path for path in FILES if path.is_relative_to(ROOT / "tests") and path != Path(__file__)]


def _problems(files: list[Path], look: Callable[[str], list[str]]) -> str:
    """What the look says of the text of each file, one a line."""
    return "\n".join(f"{path.relative_to(ROOT)}: {told}" for path in files for told in look(path.read_text()))


def _functions(text: str) -> Iterator[Function]:
    return (node for node in ast.walk(ast.parse(text)) if isinstance(node, Function))


def _lines(node: Function) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 20
    assert len(TESTS) > 5


def test_a_file_is_read_in_one_sitting() -> None:
    assert not _problems(FILES, lambda text: [f"{n} lines"] if (n := len(text.splitlines())) > FILE_LINES else [])


def test_a_function_fits_a_screen() -> None:
    assert not _problems(
        FILES, lambda text: [f"{x.name} has {_lines(x)} lines" for x in _functions(text) if _lines(x) > FUNCTION_LINES]
    )


def test_modules_are_named_for_what_they_own() -> None:
    assert [path for path in FILES if path.stem in FORBIDDEN_NAMES or path.parent.name in FORBIDDEN_NAMES] == []


def test_nothing_is_left_to_do() -> None:
    others = [path for path in FILES if path != Path(__file__)]
    assert not _problems(others, lambda text: re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b.*", text))


def test_a_type_error_is_ignored_by_its_code() -> None:
    others = [path for path in FILES if path != Path(__file__)]
    assert not _problems(others, lambda text: re.findall(r"(?m)^.*#\s*type:\s*ignore(?!\[).*$", text))


def test_every_module_says_what_it_owns() -> None:
    def undocumented(text: str) -> list[str]:
        return ["no module docstring"] if text.strip() and not ast.get_docstring(ast.parse(text)) else []

    assert not _problems(SOURCES, undocumented)


def test_nothing_is_patched() -> None:
    """What a test wants to replace is handed in through a port."""
    assert not _problems(
        TESTS, lambda text: re.findall(r"mock\.patch|from unittest import mock|import mock|monkeypatch\.setattr", text)
    )


def test_no_test_is_skipped_but_for_something_that_is_absent() -> None:
    assert not _problems(TESTS, lambda text: re.findall(r"pytest\.mark\.(?:skip|xfail)\b(?!if).*", text))


def test_no_exception_is_swallowed() -> None:
    def swallowed(text: str) -> list[str]:
        handlers = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ExceptHandler)]
        return [
            f"line {x.lineno} hides every error"
            for x in handlers
            if (x.type is None or (isinstance(x.type, ast.Name) and x.type.id in ("Exception", "BaseException")))
            and all(isinstance(statement, ast.Pass | ast.Continue) for statement in x.body)
        ]

    assert not _problems(SOURCES, swallowed)


def test_the_import_contract_is_kept() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=IMPORT_CONTRACT_DEADLINE_S
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
