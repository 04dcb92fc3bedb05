"""Everything that is measured, as of one moment, and the page that Prometheus reads. Pure reading; the format is an adapter's.

What is told is bounded, whatever the size of the fleet: see docs/reference/metrics.md. The page is made on the server's event
loop.
"""

from collections.abc import Iterable
from typing import Protocol

from keepstep import __version__
from keepstep.adapters.prometheus.exposition import exposition
from keepstep.adapters.prometheus.process import process
from keepstep.server.desk import Desk
from keepstep.server.fleet_metrics import fleet
from keepstep.server.job_metrics import checkpoints, jobs, recoveries
from keepstep.server.meters import Meters
from keepstep.telemetry import Family


class Measured(Protocol):
    """As much of server.site.Site as is measured."""

    @property
    def leads(self) -> bool: ...

    @property
    def meters(self) -> Meters: ...

    def desk(self) -> Desk: ...


def metrics_text(site: Measured, accept: str = "") -> tuple[bytes, str]:
    """The page and its content type: OpenMetrics where ``accept`` asks for it, else the text format."""
    return exposition([*families(site), *process()], accept)


def families(site: Measured) -> list[Family]:
    """All of them, also those without a series. A server that follows tells of itself only: what it knows of jobs and of the
    fleet the leader tells as well, and sums over both would count it twice."""
    desk = site.desk()
    own = [*_journal(desk, site.meters), *_server(desk, site)]
    return [*fleet(desk), *jobs(desk), *recoveries(desk, site.meters), *checkpoints(desk), *own] if site.leads else own


def _journal(desk: Desk, meters: Meters) -> Iterable[Family]:
    entries = Family(
        name="keepstep_journal_entries", kind="counter", labels=("record",),
        help="Journal entries by kind of fact, or stage of the decision.",
    )  # fmt: skip
    for kind, count in desk.tallies.entries.items():
        entries.add(count, kind)
    yield entries
    yield _one("keepstep_journal_last_entry", "gauge", "Number of the newest journal entry.", desk.world.seq)
    append = Family(
        name="keepstep_journal_append_seconds", kind="histogram", help="One flush of the journal to its medium."
    )
    append.add(meters.append_s)
    yield append
    yield _one(
        "keepstep_journal_available", "gauge", "1 while the journal can be written.", 0 if meters.journal_error else 1
    )
    yield _one(
        "keepstep_journal_failures", "counter", "Appends that failed and were tried again.", meters.journal_failures
    )
    yield _one(
        "keepstep_stale_facts", "counter",
        "Facts of an older generation, session or order: recorded, never acted on.", desk.world.stale,
    )  # fmt: skip


def _server(desk: Desk, site: Measured) -> Iterable[Family]:
    meters = site.meters
    build = Family(name="keepstep_build_info", kind="gauge", labels=("version",), help="1; the version is the label.")
    build.add(1, __version__)
    yield build
    yield _one("keepstep_leader", "gauge", "1 on the server that leads, 0 on one that follows.", 1 if site.leads else 0)
    yield _one("keepstep_term", "gauge", "Term of the newest leadership.", desk.registry.term)
    passes = Family(
        name="keepstep_loop_seconds", kind="histogram", help="One pass of the loop: fold, decide, keep, let out."
    )
    passes.add(meters.pass_s)
    yield passes
    last_s = meters.last_pass_s
    yield _one(
        "keepstep_loop_age_seconds", "gauge", "Since the loop last went round; 0 before the first time.",
        max(0.0, desk.now_s - last_s) if last_s is not None else 0.0,
    )  # fmt: skip
    connections = Family(name="keepstep_connections", kind="gauge", labels=("role",), help="Open connections.")
    for role, count in meters.connections.items():
        connections.add(count, role)
    yield connections
    yield _one("keepstep_orders_open", "gauge", "Orders without an answer.", len(desk.world.orders))
    yield from _tallied(desk, meters)
    expires = [c.expires_s for s, c in desk.registry.certificates.items() if s not in desk.registry.revoked]
    expiry = Family(
        name="keepstep_certificate_expiry_seconds", kind="gauge",
        help="Until the first certificate of the built-in authority runs out.",
    )  # fmt: skip
    if expires:
        expiry.add(min(expires) - desk.now_s)
    yield expiry


def _tallied(desk: Desk, meters: Meters) -> Iterable[Family]:
    refused = Family(
        name="keepstep_requests_refused", kind="counter", labels=("what",),
        help="Requests of people and programs that were refused, by their kind.",
    )  # fmt: skip
    for labels, count in desk.tallies.refused.items():
        refused.add(count, *labels)
    yield refused
    probes = Family(
        name="keepstep_probe_timeouts", kind="counter", labels=("probe",), help="Looks at hardware that hung or erred."
    )
    for labels, count in desk.tallies.probes.items():
        probes.add(count, *labels)
    yield probes
    alerts = Family(
        name="keepstep_alerts", kind="counter", labels=("channel", "result"),
        help="Notices to people by channel: sent, failed (given up), or dropped (the queue was full).",
    )  # fmt: skip
    for labels, count in list(meters.alerts.items()):  # channels count in threads of their own
        alerts.add(count, *labels)
    yield alerts
    spools = Family(
        name="keepstep_spool_dropped", kind="counter", labels=("role",),
        help="Facts that agents and launchers dropped because too many waited for the server.",
    )  # fmt: skip
    for role, count in meters.spools_dropped.items():
        spools.add(count, role)
    yield spools
    yield _one("keepstep_spans_dropped", "counter", "Spans that did not fit the export queue.", meters.spans_dropped)


def _one(name: str, kind: str, help: str, value: float) -> Family:
    made = Family(name=name, kind=kind, help=help)  # type: ignore[arg-type]
    made.add(value)
    return made
