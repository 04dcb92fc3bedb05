"""Hardware's evidence as other releases, makers and loggers print it: each text says what is right, and nothing else may come.

Written by hand in the formats of the field. The verdicts were decided before any of it was read by this program.
"""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from keepstep.core.root_cause import RootCause
from keepstep.evidence.diagnosis import diagnose
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read

HERE = Path(__file__).parent / "variants_hardware"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(HERE.glob("*.toml"))
    for case in tomllib.loads(path.read_text())["case"]
]


def incidents(case: dict[str, Any]) -> list[RootCause]:
    reading = read(Document("evidence", f"{case['text']}\n".encode()))
    if reading is None:
        assert case.get("healthy"), "nobody knows the form"
        return []
    return diagnose([reading]).incidents


def wrong(found: RootCause, want: dict[str, Any]) -> list[str]:
    row = found.row
    said = {
        "scope": row.scope.value, "isolate": row.isolate, "job": found.job_action, "cause": row.cause.value,
        "action": found.resource_action,
    }  # fmt: skip
    problems = [f"{name} {said[name]}, not {want[name]}" for name in said if name in want and said[name] != want[name]]
    if not row.failure_class.startswith(want["class"]):
        problems.append(f"class {row.failure_class}, not {want['class']}")
    if want.get("resource", "") not in found.resource:
        problems.append(f"resource {found.resource}, not {want['resource']}")
    return problems


@pytest.mark.parametrize("case", CASES)
def test_each_text_is_one_incident_or_none(case: dict[str, Any]) -> None:
    found = incidents(case)
    told = "; ".join(f"{cause.resource}: {cause.row.failure_class} <- {cause.signals[0].key}" for cause in found)
    if case.get("healthy"):
        assert not found, told
        return
    assert len(found) == 1, told or "nothing was found"
    assert not wrong(found[0], case["want"])


def test_there_are_many_of_them() -> None:
    assert len(CASES) >= 200
