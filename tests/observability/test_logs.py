"""Log lines for machines: one JSON object each, with what it is about."""

import asyncio
import io
import json
import logging
import re
import subprocess
import sys

import pytest

from keepstep import logs
from keepstep.core import decision as d
from keepstep.server.logs import about_decision
from keepstep.server.traces import trace_id


@pytest.fixture
def lines():
    """A logger that writes JSON; the lines that it wrote."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    logger = logging.getLogger("keepstep.test-of-logs")
    logger.propagate, logger.handlers = False, [handler]
    logger.setLevel(logging.INFO)
    yield logger, lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logger.handlers = []


def test_a_line_says_when_how_bad_who_and_what(lines):
    logger, read = lines
    logger.warning("disk %s\nfull", "/a")
    (line,) = read()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
    assert (
        line["level"] == "warning" and line["logger"] == "keepstep.test-of-logs" and line["message"] == "disk /a\nfull"
    )
    assert not set(line) & set(logs.FIELDS)


def test_a_line_carries_what_it_is_about(lines):
    logger, read = lines
    logger.info("x", extra={"job": "j", "generation": 3, "node": ""})
    with logs.about(job="k", incident="i1"), logs.about(incident="i2"):
        logger.info("y")
        logger.info("z", extra={"job": "own"})
    logger.info("after")
    told = [{name: line[name] for name in logs.FIELDS if name in line} for line in read()]
    assert told == [{"job": "j", "generation": 3}, {"job": "k", "incident": "i2"}, {"job": "own", "incident": "i2"}, {}]
    with pytest.raises(ValueError, match="colour"), logs.about(colour="red"):
        pass


def test_two_tasks_do_not_mix_what_they_are_about(lines):
    logger, read = lines

    async def work(job):
        with logs.about(job=job):
            await asyncio.sleep(0)
            logger.info("x")

    async def both():
        await asyncio.gather(work("a"), work("b"))

    asyncio.run(both())
    assert [line["job"] for line in read()] == ["a", "b"]


def test_an_exception_is_part_of_its_line(lines):
    logger, read = lines
    try:
        raise OSError("disk full")
    except OSError:
        logger.exception("it failed")
    (line,) = read()
    assert "OSError: disk full" in line["exception"] and "Traceback" in line["exception"]


@pytest.mark.parametrize(("arguments", "environment"), [("'json'", {}), ("", {"KEEPSTEP_LOG_FORMAT": "json"})])
def test_the_format_is_chosen_by_argument_or_environment(arguments, environment):
    code = f"import logging; from keepstep import logs; logs.configure({arguments}); logging.getLogger('a').info('b')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120.0,
        env={"PATH": "/usr/bin", **environment},
    )
    assert json.loads(done.stderr)["message"] == "b"


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match="text, json"):
        logs.configure("xml")


def test_a_decision_about_an_incident_names_its_job_generation_and_trace(recovered, site_of):
    site = site_of(recovered)
    world = site.books.world
    incident = next(i for i in world.incidents.values() if i.kind == "fault")
    decision = next(e.record for e in recovered if isinstance(e.record, d.Decision) and e.record.subject == incident.id)
    assert about_decision(decision, world) == {
        "stage": decision.stage,
        "incident": incident.id,
        "trace_id": trace_id(incident.id, incident.opened_s),
        "job": incident.job,
        "generation": world.jobs[incident.job].generation,
    }
    for entry in recovered:
        if isinstance(entry.record, d.Decision):
            assert set(about_decision(entry.record, world)) <= set(logs.FIELDS)


def test_an_agent_writes_its_log_as_json(tmp_path):
    """No server is there, which it says."""
    agent = subprocess.Popen(
        [
            sys.executable, "-m", "keepstep.agent", "--state-dir", str(tmp_path), "--node", "n7", "--sources", "md",
            "--log-format", "json", "--server", "tcp:127.0.0.1:9",
        ],
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert agent.stderr is not None
        line = json.loads(agent.stderr.readline())
        assert "no server" in line["message"]
        assert line["node"] == "n7" and line["session"] and line["logger"].startswith("keepstep")
    finally:
        agent.terminate()
        agent.wait(timeout=120.0)
        agent.stderr.close()
