"""Files that pages show are accepted by who reads them, and their tables of keys are whole."""

import re
import tomllib
from pathlib import Path

import pytest

from keepstep.agent.config import parse_config
from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.override import override
from keepstep.core.catalog.row import Row
from keepstep.core.combine import RULES
from keepstep.server.bmc_file import BmcEntry, read_bmc_file

from .pages import DOCS, sections, table


def blocks(page: str) -> list[str]:
    """The TOML that a page shows."""
    return re.findall(r"```toml\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_rows_that_the_page_shows_are_accepted_and_name_a_rule_that_there_is() -> None:
    (text,) = blocks("how-to/change-what-a-signal-means.md")
    told = tomllib.loads(text)
    changed = override(CATALOG, told, "page")
    assert all(key in CATALOG.rows or key.startswith("site.") for key in told["signal"])
    assert set(changed.rule_modes) <= {rule.name for rule in RULES}


def test_every_field_of_a_row_is_in_the_table_of_the_page() -> None:
    page = table(sections(DOCS / "how-to" / "change-what-a-signal-means.md")["Write your rows"])
    assert set(re.findall(r"`(\w+)`", " ".join(page))) == set(Row.__struct_fields__)


@pytest.mark.parametrize("text", blocks("how-to/watch-a-node.md"))
def test_configuration_of_an_agent_that_the_page_shows_is_accepted(text: str) -> None:
    parse_config(tomllib.loads(text), "page")


def test_controllers_that_the_page_shows_are_accepted_and_every_key_is_explained(tmp_path: Path) -> None:
    (text,) = blocks("how-to/watch-a-bmc.md")
    (tmp_path / "bmc.toml").write_text(text)
    assert [entry.protocol for entry in read_bmc_file(tmp_path / "bmc.toml").values()] == ["redfish", "ipmi"]
    page = table(sections(DOCS / "how-to" / "watch-a-bmc.md")["Say where the controllers are"])
    assert set(re.findall(r"`(\w+)`", " ".join(page))) == set(BmcEntry.__struct_fields__)
