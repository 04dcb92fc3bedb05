"""Evidence as other tools, versions and vendors print it, by hand: each case says what is right, and no more may come."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from keepstep.core.root_cause import RootCause
from keepstep.evidence.diagnosis import diagnose
from keepstep.evidence.document import Document
from keepstep.evidence.recognise import read

HERE = Path(__file__).parent / "variants"
CASES = [
    pytest.param(case, id=f"{path.stem}: {case['name']}")
    for path in sorted(HERE.glob("*.toml"))
    for case in tomllib.loads(path.read_text())["case"]
]


def incidents(case: dict[str, Any]) -> list[RootCause]:
    texts = case.get("texts") or [case["text"]]
    documents = [Document(f"evidence{number}", text.lstrip("\n").encode()) for number, text in enumerate(texts)]
    readings = [reading for document in documents if (reading := read(document)) is not None]
    assert case.get("unread") or len(readings) == len(documents), "a document was not recognised"
    return diagnose(readings).incidents


def fits(found: RootCause, want: dict[str, str]) -> bool:
    row = found.row
    action = want.get("action", "")
    return (
        row.cause.value in want.get("cause", row.cause.value).split("|")
        and row.failure_class.startswith(tuple(want["class"].split("|")))
        and row.scope.value in want.get("scope", row.scope.value).split("|")
        and want.get("resource", "") in found.resource
        and (
            action[1:] not in found.resource_action
            if action[:1] == "!"
            else found.resource_action.startswith(tuple(action.split("|")))
        )
        and found.job_action.startswith(want.get("job", ""))
    )


def told(found: RootCause) -> str:
    row = found.row
    return (
        f"{row.cause.value} {row.failure_class} {row.scope.value} {found.resource} {row.verdict.value} "
        f"{found.resource_action} | {found.job_action} <- {found.signals[0].key}"
    )


@pytest.mark.parametrize("case", CASES)
def test_the_right_thing_is_said_of_every_variant(case: dict[str, Any]) -> None:
    found = incidents(case)
    said = "\n".join(map(told, found)) or "nothing"
    if case.get("no_quarantine"):
        assert not any("quarantine" in cause.resource_action for cause in found), said
        return
    wants = case.get("wants", [case["want"]] if "want" in case else [])
    assert len(found) == len(wants), said
    for want in wants:
        assert any(fits(cause, want) for cause in found), said
