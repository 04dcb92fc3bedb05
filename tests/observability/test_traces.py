"""A recovery as a trace: real times, one tree, ids that are known before it is sent; and what a receiver of OTLP gets."""

import asyncio
import json
from itertools import pairwise

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.work import lines_run

from keepstep.adapters.otel.export import QUEUE_MAX, OtlpExport
from keepstep.adapters.otel.switches import wanted
from keepstep.core import decision as d
from keepstep.server.alert_file import AlertFile
from keepstep.server.metrics import families
from keepstep.server.observability import Observability, open_observability
from keepstep.server.site import NoLeader
from keepstep.server.traces import fault_span, recovery_spans, root_span_id, trace_id


@pytest.fixture
def folded(recovered, site_of):
    return site_of(recovered)


@pytest.fixture
def incidents(folded):
    return [i for i in folded.books.world.incidents.values() if i.closed_s is not None and i.kind == "fault"]


@pytest.fixture
def otlp(receiver, monkeypatch):
    """Exports to the receiver; stopped at the end."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "60")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    made = OtlpExport("server-1", traces=True, metrics=True)
    yield made
    made.stop(60.0)


def test_stages_fill_a_recovery_and_orders_lie_in_their_stage(folded, incidents):
    world, history = folded.books.world, folded.books.history
    seen_orders = 0
    for incident in incidents:
        root, *others = recovery_spans(world, history, incident)
        stages = [s for s in others if s.parent == root.id and s.name in incident.stage_s]
        assert root.parent == "" and {s.trace for s in others} == {root.trace}
        assert (root.start_s, root.end_s) == (incident.opened_s, incident.closed_s)
        assert stages[0].start_s == incident.opened_s
        assert all(one.end_s == two.start_s for one, two in pairwise(stages))
        by_name: dict[str, float] = {}
        for stage in stages:
            by_name[stage.name] = by_name.get(stage.name, 0.0) + stage.end_s - stage.start_s
        assert by_name == pytest.approx(incident.stage_s)
        known = {s.id: s for s in stages} | {root.id: root}
        for order in (s for s in others if s not in stages):
            seen_orders += 1
            assert known[order.parent].start_s <= order.start_s <= order.end_s
            assert order.attributes["keepstep.order"] in history.orders
        assert len({s.id for s in others}) == len(others)
    assert seen_orders > 10


def test_the_root_says_what_it_was_and_what_it_stood_on(folded, incidents):
    incident = next(i for i in incidents if i.state.value == "recovered" and i.attempts[-1].diagnosis.evidence)
    root, *_ = recovery_spans(folded.books.world, folded.books.history, incident)
    diagnosis = incident.attempts[-1].diagnosis
    assert root.name == "recovery" and root.error == ""
    assert root.attributes["keepstep.cause"] == diagnosis.cause.value
    assert root.attributes["keepstep.job"] == incident.job
    evidence = [e for e in root.events if e.name == "evidence"]
    assert diagnosis.evidence[0].text in {e.attributes["keepstep.text"] for e in evidence}
    assert any(e.attributes.get("keepstep.reason") for e in root.events)


def test_a_recovery_that_was_given_up_is_an_error(folded, incidents):
    incident = next(i for i in incidents if i.state.value == "escalated")
    assert recovery_spans(folded.books.world, folded.books.history, incident)[0].error == "escalated"


def test_ids_are_known_before_the_trace_is_made_and_tell_installations_apart(folded, incidents):
    incident = incidents[0]
    root, *_ = recovery_spans(folded.books.world, folded.books.history, incident)
    assert root.trace == trace_id(incident.id, incident.opened_s) and len(root.trace) == 32
    assert root.id == root_span_id(root.trace) and len(root.id) == 16
    assert trace_id(incident.id, incident.opened_s + 1.0) != root.trace
    again = recovery_spans(folded.books.world, folded.books.history, incident)
    assert again == [root, *again[1:]]


def test_a_recovery_and_its_fault_link_to_each_other(journals, site_of):
    site = site_of(journals("mixed", 1))
    world, history = site.books.world, site.books.history
    linked = 0
    for incident in world.incidents.values():
        fault = next(
            (world.faults[a.diagnosis.fault] for a in incident.attempts if a.diagnosis and a.diagnosis.fault), None
        )
        if fault is None or incident.closed_s is None:
            continue
        linked += 1
        root = recovery_spans(world, history, incident)[0]
        span = fault_span(world, fault)
        assert (span.trace, span.id) in root.links
        assert span.attributes["keepstep.failure_class"] == fault.nature.failure_class
        if incident.id in fault.incidents:
            assert (root.trace, root.id) in span.links
    assert linked


def test_a_receiver_gets_the_spans_as_they_were(otlp, receiver, folded, incidents):
    spans = recovery_spans(folded.books.world, folded.books.history, incidents[0])
    assert otlp.spans(spans)
    request = receiver.take()
    assert request.path == "/v1/traces"
    (of,) = ExportTraceServiceRequest.FromString(request.body).resource_spans
    named = {a.key: a.value.string_value for a in of.resource.attributes}
    assert named["service.name"] == "keepstep" and named["service.instance.id"] == "server-1"
    assert named["deployment.environment.name"] == "test"
    got = {s.span_id.hex(): s for s in of.scope_spans[0].spans}
    assert got.keys() == {s.id for s in spans}
    for span in spans:
        one = got[span.id]
        assert one.trace_id.hex() == span.trace and one.parent_span_id.hex() == span.parent and one.name == span.name
        assert one.start_time_unix_nano == round(span.start_s * 1e9)
        assert one.end_time_unix_nano == round(span.end_s * 1e9)
        assert {a.key for a in one.attributes} == span.attributes.keys()
        assert [e.name for e in one.events] == [e.name for e in span.events]


def test_a_receiver_gets_the_figures_under_the_names_of_the_conventions(otlp, receiver, journals, site_of):
    site = site_of(journals("mixed", 1))
    assert otlp.metrics(families(site), site.at_s)
    request = receiver.take()
    assert request.path == "/v1/metrics"
    (of,) = ExportMetricsServiceRequest.FromString(request.body).resource_metrics
    got = {m.name: m for m in of.scope_metrics[0].metrics}
    assert got["keepstep_incidents"].sum.is_monotonic
    assert got["keepstep_stage_seconds"].histogram.data_points[0].count > 0
    assert {a.key for p in got["hw.errors"].sum.data_points for a in p.attributes} == {"hw.type", "error.type"}
    told = {family.name: sum(v for _, v in family.samples) for family in families(site) if family.name == "hw_errors"}
    assert sum(p.as_double for p in got["hw.errors"].sum.data_points) == told["hw_errors"]


def test_an_endpoint_that_is_away_costs_the_loop_nothing(monkeypatch, folded, incidents):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")  # the first of them is tried until the end
    export = OtlpExport("server-1", traces=True, metrics=False)
    spans = recovery_spans(folded.books.world, folded.books.history, incidents[0])
    kept = [export.spans(spans) for _ in range(QUEUE_MAX + 20)]
    assert kept.count(False) >= 10, "what does not fit is dropped, and said to be"
    assert lines_run(lambda: export.spans(spans)) < 500, "not even a span more is made"
    export.stop(0.1)


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, (False, False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, (True, True)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, (True, False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_METRICS_EXPORTER": "none"}, (True, False)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c", "OTEL_SDK_DISABLED": "true"}, (False, False)),
    ],
)
def test_nothing_is_exported_unless_an_endpoint_is_named(environment, told):
    assert wanted(environment) == told


class Kept:
    """An export that keeps what it is handed."""

    def __init__(self, fits=True):
        self.traces, self.rounds, self.fits = [], 0, fits

    def spans(self, spans):
        self.traces.append(list(spans))
        return self.fits

    def metrics(self, families, now_s):
        self.rounds += 1
        return True

    def stop(self, within_s):
        return


def test_each_recovery_is_exported_once_when_it_is_closed(recovered, site_of):
    site, export = site_of([]), Kept()
    watch = Observability(site, AlertFile(), [], export)
    for entry in recovered:
        site.books.enter(entry)
        site.at_s = entry.at_s
        watch.note([entry])
    closes = [
        c for e in recovered if isinstance(e.record, d.Decision) for c in e.record.changes if isinstance(c, d.Close)
    ]
    roots = [t[0].attributes["keepstep.incident"] for t in export.traces if t[0].name in ("recovery", "start")]
    assert roots == [c.incident for c in closes]
    full = Kept(fits=False)
    site.meters.spans_dropped = 0
    ends = [e for e in recovered if isinstance(e.record, d.Decision) and closes[-1] in e.record.changes]
    Observability(site, AlertFile(), [], full).note(ends)
    assert site.meters.spans_dropped == len(full.traces[0])


def test_what_is_kept_before_the_server_can_be_asked_is_told_later(recovered, site_of):
    class NotOpen:
        leads, open = True, False

        def __init__(self, site):
            self.site, self.meters = site, site.meters

        def desk(self):
            if not self.open:
                raise NoLeader("not yet")
            return self.site.desk()

    site, export = NotOpen(site_of(recovered)), Kept()
    watch = Observability(site, AlertFile(), [], export)
    watch.note(recovered[:-1])
    assert export.traces == []
    site.open = True
    watch.note(recovered[-1:])
    assert len(export.traces) > 2


def test_figures_are_exported_once_a_minute(site):
    export = Kept()
    watch = Observability(site, AlertFile(), [], export)
    for now_s in range(0, 130, 1):
        watch.tick(float(now_s))
    assert export.rounds == 3


async def _stopped(watch):
    await watch.stop()


def test_what_the_state_directory_wants_is_told_to_a_real_receiver(tmp_path, recovered, site, receiver, eventually):
    """Alerts and the signal of life of a server that leads: an entry goes in, a request comes out."""
    (tmp_path / "alerts.toml").write_text(
        f"[webhook.w]\nurl = '{receiver.url}/w'\nmin_level = 'page'\ntimeout_s = 60\n"
        f"[heartbeat]\nurl = '{receiver.url}/alive'\ntimeout_s = 60\n"
    )
    watch = open_observability(tmp_path, site, "server-1", {})
    for entry in recovered:
        site.books.enter(entry)
        site.at_s = entry.at_s
        watch.note([entry])
    kinds = [json.loads(receiver.take().body)["kind"] for _ in range(3)]
    assert sorted(kinds) == ["escalated", "waiting", "waiting"]
    eventually(lambda: site.meters.alerts == {("webhook w", "sent"): 3}, "they count as sent")
    watch.tick(site.at_s)
    assert receiver.requests.empty(), "the loop never went round"
    site.meters.passed(0.01, site.at_s)
    watch.tick(site.at_s)
    assert receiver.take().path == "/alive"
    watch.tick(site.at_s + 100.0)
    asyncio.run(_stopped(watch))
    assert receiver.requests.empty(), "a loop that stands still is not alive"
    assert site.meters.alerts == {("webhook w", "sent"): 3}
