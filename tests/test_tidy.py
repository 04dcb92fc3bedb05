"""House rules that a linter does not know: sizes, names, docstrings, tests without patches, and the import contract."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TREES = ("src", "tests", "bench", "examples", "docs")
FILE_LINES = 500
FUNCTION_LINES = 60
FORBIDDEN_NAMES = ("utils", "util", "common", "helpers", "helper", "manager", "managers", "misc", "base")
IMPORT_CONTRACT_DEADLINE_S = 300

BEGINNING = re.compile(r"([ \t]*)((?:async )?def\b|class\b|@)")
BROAD = re.compile(r"except(?: Exception| BaseException)?(?: as \w+)?:")

Function = ast.FunctionDef | ast.AsyncFunctionDef

FILES = sorted(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))
SOURCES = [path for path in FILES if path.is_relative_to(ROOT / "src")]
TESTS = [path for path in FILES if path.is_relative_to(ROOT / "tests") and path != Path(__file__)]


def _problems(files: list[Path], look: Callable[[str], list[str]]) -> str:
    """What the look says of the text of each file, one a line."""
    return "\n".join(f"{path.relative_to(ROOT)}: {told}" for path in files for told in look(path.read_text()))


def _statements(body: list[Any]) -> Iterator[ast.AST]:
    """Every statement and handler, at any depth. Expressions are not gone into: they hold none."""
    for node in body:
        yield node
        for name in ("body", "handlers", "orelse", "finalbody", "cases"):
            yield from _statements(getattr(node, name, ()))


def _may_be_long(text: str) -> bool:
    """Whether some function is followed by nothing as far out as itself for more lines than it may have."""
    open_: list[tuple[int, int]] = []
    lines = text.splitlines()
    for at, line in enumerate((*lines, "def")):
        if (found := BEGINNING.match(line)) is None:
            continue
        while open_ and open_[-1][0] >= len(found[1]):
            if at - open_.pop()[1] > FUNCTION_LINES:
                return True
        if "def" in found[2]:
            open_.append((len(found[1]), at))
    return False


def _long_functions(statements: list[ast.AST]) -> list[str]:
    functions = [(x, (x.end_lineno or x.lineno) - x.lineno + 1) for x in statements if isinstance(x, Function)]
    return [f"{x.name} has {lines} lines" for x, lines in functions if lines > FUNCTION_LINES]


def _swallowed(statements: list[ast.AST]) -> list[str]:
    return [
        f"line {x.lineno} hides every error"
        for x in statements
        if isinstance(x, ast.ExceptHandler)
        and (x.type is None or (isinstance(x.type, ast.Name) and x.type.id in ("Exception", "BaseException")))
        and all(isinstance(statement, ast.Pass | ast.Continue) for statement in x.body)
    ]


def test_there_is_something_to_look_at() -> None:
    assert len(SOURCES) > 20
    assert len(TESTS) > 5


def test_a_file_is_read_in_one_sitting() -> None:
    assert not _problems(FILES, lambda text: [f"{n} lines"] if (n := len(text.splitlines())) > FILE_LINES else [])


def test_a_function_fits_a_screen_and_no_exception_is_swallowed() -> None:
    """One test, so that a file is parsed once, and only where a look at its text does not say enough."""

    def of_any(text: str) -> list[str]:
        return _long_functions(list(_statements(ast.parse(text).body))) if _may_be_long(text) else []

    def of_source(text: str) -> list[str]:
        if not _may_be_long(text) and not BROAD.search(text):
            return []
        statements = list(_statements(ast.parse(text).body))
        return [*_long_functions(statements), *_swallowed(statements)]

    assert not _problems(SOURCES, of_source)
    assert not _problems(sorted({*FILES} - {*SOURCES}), of_any)


def test_the_look_finds_what_is_wrong() -> None:
    inner = "        pass\n" * FUNCTION_LINES
    text = f"class A:\n    def long(self):\n{inner}\n    def short(self):\n        try:\n            b()\n"
    text += "        except Exception:\n            pass\n        except ValueError:\n            pass\n"
    assert _may_be_long(text) and BROAD.search(text)
    found = list(_statements(ast.parse(text).body))
    assert _long_functions(found) == [f"long has {FUNCTION_LINES + 1} lines"]
    assert _swallowed(found) == ["line 67 hides every error"]
    assert not _may_be_long("    def short(self):\n        pass\n" * FUNCTION_LINES)


def test_every_module_says_what_it_owns() -> None:
    assert not _problems(SOURCES, lambda text: ["no module docstring"] if text and not text.startswith('"""') else [])


def test_modules_are_named_for_what_they_own() -> None:
    assert [path for path in FILES if path.stem in FORBIDDEN_NAMES or path.parent.name in FORBIDDEN_NAMES] == []


def test_a_cancellation_is_never_lost() -> None:
    """That of Python 3.11 drops one that meets the end of what it waits for; ``asyncio.timeout`` does not."""
    assert not _problems(SOURCES, lambda text: re.findall(r"asyncio\.wait_for\(", text))


def test_nothing_is_left_to_do() -> None:
    others = [path for path in FILES if path != Path(__file__)]
    assert not _problems(others, lambda text: re.findall(r"\b(?:TODO|FIXME|XXX|HACK)\b.*", text))


def test_a_type_error_is_ignored_by_its_code() -> None:
    others = [path for path in FILES if path != Path(__file__)]
    assert not _problems(others, lambda text: re.findall(r"(?m)^.*#\s*type:\s*ignore(?!\[).*$", text))


def test_nothing_is_patched() -> None:
    """What a test wants to replace is handed in through a port."""
    assert not _problems(
        TESTS, lambda text: re.findall(r"mock\.patch|from unittest import mock|import mock|monkeypatch\.setattr", text)
    )


def test_no_test_is_skipped_but_for_something_that_is_absent() -> None:
    assert not _problems(TESTS, lambda text: re.findall(r"pytest\.mark\.(?:skip|xfail)\b(?!if).*", text))


def test_the_import_contract_is_kept() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(linter), "--no-cache"], cwd=ROOT, capture_output=True, text=True, timeout=IMPORT_CONTRACT_DEADLINE_S
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
