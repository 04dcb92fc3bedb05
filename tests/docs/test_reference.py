"""The reference pages say what the code says: no field, variable, fact or intent is missing, and no default is wrong."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from keepstep.agent.sources import NAMES
from keepstep.cli import diagnose
from keepstep.core import decision, facts, intents
from keepstep.core.catalog import Catalog
from keepstep.core.intents import Launch, RankPlace, Restore
from keepstep.core.policy import Policy
from keepstep.launcher.rank_environment import Surroundings, rank_environment
from keepstep.launcher.settings import Settings
from keepstep.wire import environment

from .pages import DOCS, sections, table

GENERATOR_DEADLINE_S = 150
GROUPS = [
    name
    for name in Policy.__struct_fields__
    if isinstance(getattr(Policy(), name), msgspec.Struct) and not isinstance(getattr(Policy(), name), Catalog)
]
TOP = [name for name in Policy.__struct_fields__ if name not in GROUPS]


@pytest.mark.parametrize("generator", ["make_state_machines.py", "make_signals.py"])
def test_a_generated_page_is_what_the_code_says(generator: str) -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / generator), "--check"],
        capture_output=True, text=True, timeout=GENERATOR_DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("group", GROUPS)
def test_every_policy_field_is_documented_with_its_default(group: str) -> None:
    limits = getattr(Policy(), group)
    page = table(sections(DOCS / "reference" / "policy.md")[f"`{group}`"])
    assert list(page) == [f"`{name}`" for name in limits.__struct_fields__]
    for name in limits.__struct_fields__:
        _same_row(page[f"`{name}`"], getattr(limits, name))


def test_every_policy_field_of_the_top_level_is_documented() -> None:
    page = table(sections(DOCS / "reference" / "policy.md")["Top level"])
    assert list(page) == [f"`{name}`" for name in TOP]
    for name in TOP:
        _same_row(page[f"`{name}`"], getattr(Policy(), name))


def _same_row(row: list[str], value: object) -> None:
    default, meaning = row
    assert len(meaning) > 10
    if not isinstance(value, dict):
        said = ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        assert default == ("built-in" if isinstance(value, Catalog) else said)
        return
    told = {key: float(number) for key, number in re.findall(r"`(\w+)` ([\d.]+)", meaning)}
    assert told == value


def test_every_environment_variable_is_documented() -> None:
    text = (DOCS / "reference" / "environment.md").read_text()
    names = {value for name, value in vars(environment).items() if name.isupper()}
    ours = {name for name in names if name.startswith("KEEPSTEP_")}
    documented = set(re.findall(r"`(KEEPSTEP_\w+)`", text))
    assert documented == ours
    missing = [name for name in _rank_variables() | names if f"`{name}`" not in text]
    assert missing == []
    assert set(re.findall(r"`((?:TORCHELASTIC|MASTER|ROLE|GROUP)_\w+)`", text)) <= _rank_variables()


def _rank_variables() -> set[str]:
    """Everything that a launcher sets for a rank, by asking it."""
    launch = msgspec.convert(
        {
            "type": "Launch", "job": "j", "node": "n", "session": "s", "generation": 1, "argv": ("t.py",), "world_size": 1,
            "group_rank": 0, "group_world_size": 1, "store": "h:1", "checkpoint_dir": "/c", "ranks": (),
        },
        Launch,
    )  # fmt: skip
    restore = Restore(step=1, tier="disk", key="k", generation=1, world_size=1)
    settings = Settings(
        server="unix:/s", job=launch.job, node=launch.node, session=launch.session, argv=("t.py",), nproc_per_node=1,
        min_nodes=1, max_nodes=1, state_dir="/st", checkpoint_dir="/c", log_dir="/l", address="a",
    )  # fmt: skip
    around = Surroundings(master=("h", 1), cell="/cell", error_file="/e", snapshots="/snap")
    place = RankPlace(rank=0, local_rank=0, slot=0)
    return set(rank_environment(msgspec.structs.replace(launch, restore=restore), place, settings, around))


@pytest.mark.parametrize(
    ("heading", "kinds"),
    [("Facts", get_args(facts.Fact)), ("Intents", get_args(intents.Intent))],
    ids=["facts", "intents"],
)
def test_every_fact_and_intent_is_documented_in_the_order_of_the_code(heading: str, kinds: tuple[type, ...]) -> None:
    page = table(sections(DOCS / "reference" / "facts-and-intents.md")[heading])
    assert list(page) == [f"`{kind.__name__}`" for kind in kinds]


@pytest.mark.parametrize(
    ("heading", "kind"),
    [
        ("Document", diagnose.DiagnosisView),
        ("File", diagnose.FileView),
        ("Signal", diagnose.SignalView),
        ("Incident", diagnose.IncidentView),
        ("Evidence", diagnose.EvidenceView),
    ],
)
def test_every_field_of_a_diagnosis_is_documented(heading: str, kind: type[msgspec.Struct]) -> None:
    page = table(sections(DOCS / "reference" / "diagnosis-json.md")[heading])
    assert set(re.findall(r"`(\w+)`", " ".join(page))) == {field.encode_name for field in msgspec.structs.fields(kind)}


def test_every_source_of_the_agent_is_documented() -> None:
    page = table(sections(DOCS / "reference" / "agent.md")["`[source.NAME]`"])
    assert {name.strip("`") for name in page} == set(NAMES)


def test_every_decision_about_a_fault_is_documented() -> None:
    page = table(sections(DOCS / "reference" / "facts-and-intents.md")["Decisions about faults"])
    about = [kind.__name__ for kind in get_args(decision.Change) if "fault" in kind.__struct_fields__]
    assert {name.strip("`") for name in page} == {*about, "Assess", "Defer", "Due", "Reconsider"}


def test_every_outcome_is_documented() -> None:
    text = sections(DOCS / "reference" / "facts-and-intents.md")["Facts"]
    assert [kind.__name__ for kind in get_args(facts.Outcome) if f"`{kind.__name__}`" not in text] == []


def test_every_invariant_that_the_core_asserts_is_explained_under_its_number() -> None:
    source = Path(sys.modules["keepstep.core.facts"].__file__ or "").with_name("invariants.py").read_text()
    asserted = {int(number) for number in re.findall(r", (\d+), f?\"", source)}
    page = (DOCS / "explanation" / "invariants.md").read_text()
    explained = {int(number) for number in re.findall(r"(?m)^## (\d+)\. ", page)}
    assert explained == set(range(1, 12))
    assert asserted <= explained
    assert asserted >= {1, 2, 3, 5, 6, 7, 8, 11}
