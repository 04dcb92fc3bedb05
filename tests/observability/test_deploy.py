"""Rules and dashboards as files: they name only what is measured, and Prometheus' own tool and server take them."""

import contextlib
import http.server
import json
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
import yaml

from keepstep.adapters.prometheus.process import process
from keepstep.server.metrics import families, metrics_text

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BOARDS = sorted((DEPLOY / "grafana").glob("*.json"))
RULES = sorted((DEPLOY / "prometheus").glob("*.rules.yml"))
PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "metrics.md"
TOOL_DEADLINE_S = 120.0

needs_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is absent")


@pytest.fixture(scope="session")
def measured(journals, site_of):
    """All families, of a fleet with a history."""
    return [*families(site_of(journals("mixed", 1))), *process()]


def names_of(measured):
    told = set()
    for family in measured:
        if family.kind == "histogram":
            told |= {f"{family.name}_{suffix}" for suffix in ("bucket", "count", "sum")}
        else:
            told.add(f"{family.name}_total" if family.kind == "counter" else family.name)
    return told


def rules():
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def recorded():
    return {rule["record"] for rule in rules() if "record" in rule}


def expressions(path):
    if path.suffix == ".json":
        return [
            target["expr"] for panel in json.loads(path.read_text())["panels"] for target in panel.get("targets", ())
        ]
    return [rule["expr"] for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("path", [*BOARDS, *RULES], ids=lambda path: path.name)
def test_every_metric_that_a_file_names_is_measured(path, measured):
    known = names_of(measured) | recorded()
    named = {n for e in expressions(path) for n in re.findall(r"\b((?:keepstep|hw|process)[_:][a-z0-9_:]+)", e)}
    assert named
    assert named - known == set()


@pytest.mark.parametrize("path", [*BOARDS, *RULES], ids=lambda path: path.name)
def test_every_label_that_a_file_selects_by_is_one_of_its_metric(path, measured):
    labels = {}
    for family in measured:
        for name in names_of([family]):
            labels[name] = {*family.labels, "le", "job", "instance"}
    wrong = [
        (name, label)
        for expression in expressions(path)
        for name, inside in re.findall(r"\b((?:keepstep|hw)_[a-z0-9_]+)\{([^}]*)\}", expression)
        for label in re.findall(r"(\w+)\s*(?:=|!=|=~|!~)", re.sub(r'"[^"]*"', '""', inside))
        if label not in labels[name]
    ]
    assert wrong == []


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.name)
def test_a_dashboard_can_be_provisioned(path):
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    assert board["templating"]["list"][0]["type"] == "datasource"
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert [panel["type"] for panel in panels[:6]] == ["stat"] * 6 and {
        panel["gridPos"]["y"] for panel in panels[:6]
    } == {0}
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
    taken = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & taken
        taken |= cells


def test_every_alert_says_how_bad_it_is_and_what_to_do():
    for group in yaml.safe_load((DEPLOY / "prometheus" / "alerts.rules.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "warning")
            assert rule["alert"].startswith("Keepstep")
            assert len(rule["annotations"]["summary"]) > 10 and len(rule["annotations"]["description"]) > 20


def test_the_page_lists_every_metric_with_its_labels(measured):
    rows = re.findall(r"(?m)^\| `(\w+)` \| (\w+) \| ([^|]*) \|", PAGE.read_text())
    told = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    expected = {
        f"{f.name}_total" if f.kind == "counter" else f.name: (f.kind, tuple(f.labels))
        for f in measured
        if not f.name.startswith("process_")
    }
    assert told == expected


@needs_promtool
@pytest.mark.parametrize(
    "what",
    [["check", "rules", *RULES], ["test", "rules", *(DEPLOY / "prometheus" / "tests").glob("*.yml")]],
    ids=["check", "test"],
)
def test_promtool_takes_the_rules(what):
    done = subprocess.run(["promtool", *map(str, what)], capture_output=True, text=True, timeout=TOOL_DEADLINE_S)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_takes_the_page(journals, site_of):
    body, _ = metrics_text(site_of(journals("mixed", 1)))
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, timeout=TOOL_DEADLINE_S)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stderr == b"", done.stderr.decode()


class _Page(http.server.BaseHTTPRequestHandler):
    site = None

    def do_GET(self):
        body, content_type = metrics_text(self.site, self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words):
        return


@pytest.fixture
def page_of():
    """Serves the metrics of a site; gives where."""
    with contextlib.ExitStack() as opened:

        def serve(site):
            page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Page", (_Page,), {"site": site}))
            page.daemon_threads = True
            serving = threading.Thread(target=page.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
            serving.start()
            opened.callback(serving.join)
            opened.callback(page.server_close)
            opened.callback(page.shutdown)
            return f"127.0.0.1:{page.server_address[1]}"

        yield serve


class Prometheus:
    """A real one that reads a page every second. Its answers are what it has read lately: one that came late is missing."""

    def __init__(self, folder, target):
        every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        pages = [{"job_name": "keepstep", "static_configs": [{"targets": [target]}]}]
        config = {"global": every, "rule_files": [str(path) for path in RULES], "scrape_configs": pages}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                    "--web.listen-address=127.0.0.1:0",
                ],
                stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip

    def value(self, expression):
        """None where it cannot say."""
        found = self._ask("query?" + urllib.parse.urlencode({"query": expression})).get("result", [])
        return float(found[0]["value"][1]) if found else None

    def alerts(self):
        return {alert["labels"]["alertname"] for alert in self._ask("alerts").get("alerts", ())}

    def _ask(self, path):
        listens = re.search(r'"Listening on".* address=(127\.0\.0\.1:\d+)', self._log.read_text())
        if listens is None:
            return {}
        try:
            with urllib.request.urlopen(f"http://{listens[1]}/api/v1/{path}", timeout=TOOL_DEADLINE_S) as answer:
                return json.load(answer)["data"]
        except OSError:
            return {}

    def end(self):
        self._process.terminate()
        try:
            self._process.wait(TOOL_DEADLINE_S)
        finally:
            self._process.kill()


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is absent")
def test_a_real_prometheus_reads_the_page_and_fires_an_alert(tmp_path, journals, site_of, page_of, eventually):
    site = site_of(journals("mixed", 1))
    site.meters.journal_failed("disk full")
    told = {family.name: family for family in families(site)}
    expected = {
        "keepstep_journal_available": 0,
        "sum(keepstep_incidents_total)": sum(v for _, v in told["keepstep_incidents"].samples),
        "count(keepstep_goodput_seconds_total)": 6,
        'up{job="keepstep"}': 1,
    }
    prometheus = Prometheus(tmp_path, page_of(site))
    try:
        for expression, is_so in expected.items():
            eventually(lambda e=expression, so=is_so: prometheus.value(e) == so, expression)
        eventually(lambda: "KeepstepJournalUnavailable" in prometheus.alerts(), "the rule sees it")
    finally:
        prometheus.end()
