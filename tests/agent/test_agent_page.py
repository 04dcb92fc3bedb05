"""The reference page says what the agent takes: every key, every source and every default."""

import dataclasses
from pathlib import Path

import pytest

from keepstep.adapters.dependencies import Dependency, Mount
from keepstep.adapters.host import Service
from keepstep.adapters.server_link import spool
from keepstep.agent import config, joining, sources
from keepstep.agent.settings import DeclaredDevice

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "agent.md").read_text()
GUIDE = (Path(__file__).parents[2] / "docs" / "how-to" / "watch-a-node.md").read_text()


def section(name: str) -> str:
    return PAGE.split(f"## `[{name}]`", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("dependency.NAME", Dependency),
        ("mount.NAME", Mount),
        ("service.NAME", Service),
        ("device.SLOT", DeclaredDevice),
    ],
)
def test_every_key_of_a_table_is_documented_with_its_default(name: str, shape: type) -> None:
    text = section(name)
    for field in dataclasses.fields(shape):  # type: ignore[arg-type]
        if field.name in ("name", "slot"):
            continue
        assert f"`{field.name}`" in text
        if isinstance(field.default, float) and field.default:
            (row,) = (line for line in text.splitlines() if line.startswith(f"| `{field.name}`"))
            assert f"Default: {field.default:g}" in row


def test_every_key_of_the_agent_is_documented() -> None:
    assert [key for key in config._AGENT_KEYS if f"| `{key}` |" not in section("agent")] == []


def test_every_source_is_documented() -> None:
    assert [name for name in sources.NAMES if f"| `{name}` |" not in section("source.NAME")] == []


def test_bounds_are_documented() -> None:
    assert f"{joining.WINDOWS_MAX:,} different" in " ".join(PAGE.split())
    assert f"{spool.FACTS_MAX:,} facts" in " ".join(GUIDE.split())
