"""The description of the API: current, complete, and true: a fuzzer finds no answer that it does not allow."""

import json
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from tests.web.served import WAIT_S, Served
from tests.web.site import OWNER_TOKEN, running_site, story

from keepstep.web.app import api_routes
from keepstep.web.openapi import describe
from keepstep.web.reference import reference

PAGE = Path(__file__).parents[3] / "docs/reference/openapi.json"
DESCRIPTION = json.loads(json.dumps(describe(api_routes())))
API = schemathesis.openapi.from_dict(DESCRIPTION)
CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
]  # fmt: skip


def test_the_committed_description_is_that_of_the_code():
    assert PAGE.read_text() == reference(), "run: python -m keepstep.web.reference > docs/reference/openapi.json"


def test_it_is_served(served):
    assert served.http.get("/api/v1/openapi.json").json() == DESCRIPTION


def test_every_operation_has_a_name_a_text_and_its_errors():
    operations = [o for path in DESCRIPTION["paths"].values() for o in path.values()]
    names = [o["operationId"] for o in operations]
    assert len(set(names)) == len(names) > 35
    assert all(o["description"] and {"401", "403", "503"} <= set(o["responses"]) for o in operations)
    assert DESCRIPTION["openapi"].startswith("3.1")
    shapes = DESCRIPTION["components"]["schemas"]
    assert shapes["Accepted"]["examples"]
    assert shapes["IncidentLine"]["properties"]["cause"]["description"] == "Empty before the first diagnosis."


@pytest.fixture(scope="module")
def target():
    running = Served(lambda: running_site(story()))
    yield running
    running.close()


@API.exclude(path="/api/v1/events").parametrize()
@settings(max_examples=3, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
def test_no_input_gets_an_answer_that_is_not_described(case, target):
    case.call_and_validate(
        base_url=target.url, headers={"Authorization": f"Bearer {OWNER_TOKEN}"}, checks=CHECKS, timeout=WAIT_S
    )
