"""What leaves a server that leads, beside its answers: alerts, a signal of life, traces and figures. Owns putting it together.

Called on the event loop and never blocks it: everything that sends has a thread and a bounded queue of its own. Without
``alerts.toml`` and without an OTLP endpoint it does nothing.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from keepstep.adapters.email.channel import EmailChannel, MailServer
from keepstep.adapters.otel.switches import wanted
from keepstep.adapters.webhook.channel import WebhookChannel
from keepstep.core.decision import Close, CloseFault, Decision, Entry
from keepstep.server.alert_file import AlertFile, Email, Webhook, read_alert_file
from keepstep.server.alerts import Alerts, Moment
from keepstep.server.dead_man import DeadMan
from keepstep.server.delivery import Delivery, Done, stop_all
from keepstep.server.desk import Desk
from keepstep.server.fleet_metrics import breaker_state
from keepstep.server.metrics import Measured, families
from keepstep.server.site import NoLeader
from keepstep.server.traces import fault_span, recovery_spans
from keepstep.telemetry import Alert, Channel, Family, Level, Span

log = logging.getLogger("keepstep.alerts")

FILE = "alerts.toml"
STANDSTILL_S = 30.0
"""A loop that did not go round for so long is not healthy; it does so twice a second even where nothing happens."""
METRICS_S = 60.0
STOP_S = 5.0


class Export(Protocol):
    """Meets adapters.otel.export.OtlpExport, which is imported only where it is wanted."""

    def spans(self, spans: Sequence[Span]) -> bool: ...

    def metrics(self, families: Sequence[Family], now_s: float) -> bool: ...

    def stop(self, within_s: float) -> None: ...


class Observability:
    """``note`` takes entries once they are kept, ``tick`` the time, about once a second; both while the server leads."""

    def __init__(
        self, site: Measured, file: AlertFile, deliveries: Sequence[Delivery], export: Export | None = None
    ) -> None:  # fmt: skip
        self._site = site
        self._deliveries = deliveries
        self._export = export
        self._alerts = Alerts(rules=file.rules)
        self._adopted = False
        beat = file.heartbeat
        self._dead_man = DeadMan(beat.url, beat.every_s, beat.timeout_s) if beat is not None else None
        self._measured_s: float | None = None
        self._early: list[Entry] = []
        """Kept before the site could be asked."""

    def note(self, entries: Sequence[Entry]) -> None:
        if not self._deliveries and self._export is None:
            return
        self._early += entries
        try:
            desk = self._site.desk()
        except NoLeader:
            return  # the very first pass: the server is not open for questions yet
        entries, self._early = self._early, []
        if entries:
            self._adopt(desk, entries[0].at_s)
        for entry in entries:
            self._tell(self._alerts.note(desk.world, entry))
            if self._export is not None and isinstance(entry.record, Decision):
                self._trace(self._export, desk, entry.record)

    def tick(self, now_s: float) -> None:
        meters = self._site.meters
        if self._dead_man is not None:
            passed_s = meters.last_pass_s
            moving = passed_s is not None and now_s - passed_s < STANDSTILL_S
            self._dead_man.tick(now_s, moving and not meters.journal_error)
        if self._deliveries:
            self.note([])
            desk = self._site.desk()
            self._adopt(desk, now_s)
            moment = Moment(now_s=now_s, breaker=breaker_state(desk)[0], journal_error=meters.journal_error)
            self._tell(self._alerts.tick(desk.registry, moment))
        if self._export is not None and (self._measured_s is None or now_s - self._measured_s >= METRICS_S):
            self._measured_s = now_s
            self._export.metrics(families(self._site), now_s)

    def followed(self) -> None:
        """Another server leads: what fires is its to tell."""
        self._adopted, self._early = False, []
        self._alerts = Alerts(rules=self._alerts.rules)

    async def stop(self) -> None:
        """What is queued is still sent, for a few seconds."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        stop_all(self._deliveries, STOP_S)
        if self._dead_man is not None:
            self._dead_man.stop()
        if self._export is not None:
            self._export.stop(STOP_S)

    def _adopt(self, desk: Desk, before_s: float) -> None:
        if not self._adopted:
            self._adopted = True
            self._alerts.adopt(desk.world, before_s)

    def _tell(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            for delivery in self._deliveries:
                delivery.put(alert)

    def _trace(self, export: Export, desk: Desk, decision: Decision) -> None:
        spans: list[Span] = []
        for change in decision.changes:
            incident = desk.world.incidents.get(change.incident) if isinstance(change, Close) else None
            fault = desk.world.faults.get(change.fault) if isinstance(change, CloseFault) else None
            if incident is not None and incident.closed_s is not None:
                spans += recovery_spans(desk.world, desk.history, incident)
            if fault is not None:
                spans.append(fault_span(desk.world, fault))
        if spans and not export.spans(spans):
            self._site.meters.spans_dropped += len(spans)


def open_observability(
    state_dir: Path, site: Measured, identity: str, environment: Mapping[str, str]
) -> Observability:  # fmt: skip
    """As the state directory and the environment want it. Raises ValueError that says what is wrong with ``alerts.toml``, or
    which extra is missing."""
    path = state_dir / FILE
    file = read_alert_file(path)
    done = _Counted(site)
    deliveries = open_deliveries(path, file, done)
    traces, metrics = wanted(environment)
    export: Export | None = None
    if traces or metrics:
        try:
            from keepstep.adapters.otel.export import OtlpExport
        except ImportError as error:
            raise ValueError(f"{error}; or unset OTEL_EXPORTER_OTLP_ENDPOINT") from None
        export = OtlpExport(identity, traces=traces, metrics=metrics)
    return Observability(site, file, deliveries, export)


class _Counted:
    """What became of notices, in the meters; called from threads of channels."""

    def __init__(self, site: Measured) -> None:
        self._site = site

    def __call__(self, channel: str, result: str) -> None:
        self._site.meters.notice(channel, result)


def open_deliveries(path: Path, file: AlertFile, done: Done) -> list[Delivery]:
    """A queue and a thread for each channel. Raises ValueError for a file that cannot be read."""
    channels: list[tuple[Channel, Level]] = []
    channels += [(open_webhook(path, name, hook), hook.min_level) for name, hook in file.webhook.items()]
    channels += [(open_email(path, name, mail), mail.min_level) for name, mail in file.email.items()]
    return [Delivery(channel, level, done) for channel, level in channels]


def open_webhook(path: Path, name: str, hook: Webhook) -> WebhookChannel:
    where = f"{path}, webhook {name}"
    secret = _text(path, where, hook.secret_file).strip().encode()
    if hook.secret_file and not secret:
        raise ValueError(f"{where}: {hook.secret_file} is empty")
    template = _text(path, where, hook.template)
    try:
        return WebhookChannel(f"webhook {name}", hook.url, secret, template, hook.timeout_s)
    except ValueError as error:
        raise ValueError(f"{where}: {hook.template}: {error}") from None


def open_email(path: Path, name: str, mail: Email) -> EmailChannel:
    where = f"{path}, email {name}"
    ca_file = str(path.parent / mail.ca_file) if mail.ca_file else ""
    server = MailServer(
        host=mail.host, port=mail.port, security=mail.security, user=mail.user,
        password=_text(path, where, mail.password_file).rstrip("\r\n"), ca_file=ca_file,
    )  # fmt: skip
    try:
        return EmailChannel(
            f"email {name}", server, mail.sender, mail.to, _text(path, where, mail.template), mail.timeout_s
        )
    except ValueError as error:
        raise ValueError(f"{where}: {mail.template}: {error}") from None


def _text(path: Path, where: str, name: str) -> str:
    """Of a file beside ``alerts.toml``; empty where none is named."""
    if not name:
        return ""
    try:
        return (path.parent / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{where}: cannot read {path.parent / name}: {error}") from error
