"""What makes an alert, and when it is over: journal entries and the state of the server in, notices out. Pure; sends nothing.

A condition fires once, is told again every ``repeat_s`` while it lasts, and is told to be over once. What it remembers follows
from the World, so that a server that has just begun to lead knows what its forerunner told (``adopt``).
"""

from collections.abc import Iterator

import msgspec
from msgspec import Struct, field

from keepstep.core import decision as d
from keepstep.core.decision import Entry
from keepstep.core.facts import ServerStarted
from keepstep.core.ids import DrillId, IncidentId, JobId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import Notify
from keepstep.core.job import JobState
from keepstep.core.resource import ResourceState
from keepstep.core.world import World
from keepstep.server.registry import Registry
from keepstep.telemetry import LEVELS, Alert, Level

_WELL = (ResourceState.IN_SERVICE, ResourceState.PROBATION, ResourceState.RETIRED)
FIRING_MAX = 2000
"""Conditions that are remembered at once; the oldest is forgotten, and would be told anew."""


class Rules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much is told. Times in seconds."""

    min_level: Level = "warning"
    """What is less urgent is told to nobody."""
    repeat_s: float = 4 * 3600.0
    """A condition that lasts is told again so often; 0: never."""
    certificate_s: float = 7 * 86_400.0
    """How long before its end a certificate is complained about."""
    journal_s: float = 30.0
    """How long the journal must be out of order before anybody is woken."""


class Moment(Struct, frozen=True, kw_only=True):
    """The state of the server that no journal entry tells."""

    now_s: float
    breaker: str = ""
    """Why nothing more is isolated by itself; empty where it may be."""
    journal_error: str = ""
    """Why the journal cannot be written; empty where it can."""


class _Firing(Struct, kw_only=True):
    alert: Alert
    told_s: float


class Alerts(Struct, kw_only=True):
    """Feed it entries with ``note`` and time with ``tick``; each hands back the notices that are due."""

    rules: Rules = Rules()
    _firing: dict[str, _Firing] = field(default_factory=dict)
    _journal_since_s: float | None = None

    def adopt(self, world: World, before_s: float) -> None:
        """What was told before this server led, at ``before_s``: conditions that last are known, and not told anew."""
        for incident in (world.incidents[i] for i in world.open_incidents):
            if incident.state is IncidentState.WAITING and incident.entered_s < before_s:
                alert = _waiting(incident.id, incident.job, incident.waits_for, incident.entered_s)
                self._firing[alert.key] = _Firing(alert=alert, told_s=incident.entered_s)

    @property
    def firing(self) -> list[Alert]:
        return [known.alert for known in self._firing.values()]

    # ---- entries

    def note(self, world: World, entry: Entry) -> list[Alert]:
        """Notices because of one entry, which the World has folded."""
        record = entry.record
        if isinstance(record, ServerStarted):
            return list(self._started(record, entry.at_s))
        if not isinstance(record, d.Decision):
            return []
        told: list[Alert] = []
        waits = any(isinstance(c, d.MoveIncident) and c.to is IncidentState.WAITING for c in record.changes)
        for change in record.changes:
            if not isinstance(change, d.Wait) or waits:  # else it waits for capacity, of which its notice tells
                told += self._change(world, change, entry.at_s)
        for intent in record.intents:
            if isinstance(intent, Notify):
                told += self._notify(world, record, intent, entry.at_s)
        return told

    def _started(self, fact: ServerStarted, at_s: float) -> Iterator[Alert]:
        if fact.term > 1:
            text = (
                f"Server {fact.server} (version {fact.version}) leads from now on, in term {fact.term}. The one before it "
                "ended, was ended, or was no longer heard."
            )
            yield from self._once(
                _alert("leader", f"leader:{fact.term}", "warning", ("A server has taken over", text), at_s)
            )

    def _change(self, world: World, change: d.Change, at_s: float) -> Iterator[Alert]:
        match change:
            case d.Wait():
                incident = world.incidents.get(change.incident)
                job = incident.job if incident is not None else JobId("")
                yield from self._fire(_waiting(change.incident, job, change.waits_for, at_s))
            case d.MoveIncident(to=to) if to is not IncidentState.WAITING:
                for key in (f"waiting:{change.incident}", f"notice:{change.incident}"):
                    yield from self._over(key, f"it is {to.value.replace('_', ' ')}", at_s)
                if to is IncidentState.ESCALATED:
                    yield from self._escalated(world, change.incident, at_s)
            case d.Grant():
                yield from self._over(f"waiting:{change.incident}", f"approved by {change.by}", at_s)
            case d.Close():
                yield from self._over(f"notice:{change.incident}", f"the incident is closed: {change.verdict}", at_s)
            case d.MoveJob(to=JobState.RUNNING):
                yield from self._over(f"escalated:{change.job}", "the job runs again", at_s)
            case d.MoveResource(to=to) if to in _WELL:
                yield from self._over(f"notice:{change.resource}", f"it is {to.value.replace('_', ' ')}", at_s)
            case _:
                pass

    def _escalated(self, world: World, id: IncidentId, at_s: float) -> Iterator[Alert]:
        incident = world.incidents.get(id)
        if incident is None:
            return
        diagnosis = incident.diagnosis
        what = diagnosis.summary if diagnosis is not None else incident.last_failure or "no diagnosis"
        words = (
            f"{incident.job}: incident {id} needs a person",
            f"The recovery of job {incident.job} was given up: {what}",
        )
        yield from self._fire(_alert("escalated", f"escalated:{incident.job}", "page", words, at_s, (id, incident.job)))

    def _notify(self, world: World, decision: d.Decision, intent: Notify, at_s: float) -> Iterator[Alert]:
        drill = world.drills.get(DrillId(intent.subject))
        if drill is not None:
            words = (f"{drill.job}: {drill.id}", intent.message)
            key = f"notice:{drill.id}"
            yield from self._once(_alert("notice", key, intent.level, words, at_s, (drill.id, drill.job)))
            return
        incident = world.incidents.get(IncidentId(intent.subject))
        waits = f"waiting:{intent.subject}"
        if waits in self._firing:
            return  # the same decision said what it waits for
        job = incident.job if incident is not None else ""
        if incident is not None and f"escalated:{job}" in self._firing:
            return
        title = f"{job}: incident {incident.id}" if incident is not None else intent.subject
        yield from self._fire(
            _alert(
                "notice", f"notice:{intent.subject}", intent.level, (title, intent.message), at_s, (intent.subject, job)
            )
        )

    # ---- time

    def tick(self, registry: Registry, moment: Moment) -> list[Alert]:
        """Notices because of the passing of time and of what the server itself is like."""
        told: list[Alert] = []
        told += self._journal(moment)
        if moment.breaker:
            told += self._fire(
                _alert("breaker", "breaker", "page", ("The breaker stops isolation", moment.breaker), moment.now_s)
            )
        else:
            told += self._over("breaker", "isolation is possible again", moment.now_s)
        told += self._certificates(registry, moment.now_s)
        told += self._repeated(moment.now_s)
        return told

    def _journal(self, moment: Moment) -> Iterator[Alert]:
        if not moment.journal_error:
            self._journal_since_s = None
            yield from self._over("journal", "the journal can be written again", moment.now_s)
            return
        if self._journal_since_s is None:
            self._journal_since_s = moment.now_s
        if moment.now_s - self._journal_since_s >= self.rules.journal_s:
            text = f"{moment.journal_error}. Jobs train on; nothing new is decided until it can be written."
            yield from self._fire(
                _alert("journal", "journal", "page", ("The journal cannot be written", text), self._journal_since_s)
            )

    def _certificates(self, registry: Registry, now_s: float) -> Iterator[Alert]:
        if not registry.certificates:
            return
        replaced = {known.replaces for known in registry.certificates.values() if known.replaces}
        for serial, known in registry.certificates.items():
            key = f"certificate:{serial}"
            if serial in replaced or serial in registry.revoked:
                yield from self._over(key, "it was renewed or revoked", now_s)
            elif known.expires_s - now_s <= self.rules.certificate_s:
                left = f"{max(0.0, known.expires_s - now_s) / 3600:.0f} h"
                text = f"The certificate of {known.role} {known.name} runs out in {left} and was not renewed."
                title = f"Certificate of {known.name} runs out"
                yield from self._fire(_alert("certificate", key, "warning", (title, text), now_s, (known.name, "")))

    def _repeated(self, now_s: float) -> Iterator[Alert]:
        if self.rules.repeat_s <= 0:
            return
        for known in self._firing.values():
            if now_s - known.told_s >= self.rules.repeat_s:
                known.told_s = now_s
                again = round((now_s - known.alert.since_s) / self.rules.repeat_s)
                yield _replace(known.alert, id=f"{known.alert.id}.{again}", at_s=now_s)

    # ---- once, and until it is over

    def _fire(self, alert: Alert) -> Iterator[Alert]:
        if alert.key in self._firing or not self._wanted(alert):
            return
        while len(self._firing) >= FIRING_MAX:
            del self._firing[next(iter(self._firing))]
        self._firing[alert.key] = _Firing(alert=alert, told_s=alert.at_s)
        yield alert

    def _once(self, alert: Alert) -> Iterator[Alert]:
        """An event: nothing lasts that could be over."""
        if self._wanted(alert):
            yield alert

    def _wanted(self, alert: Alert) -> bool:
        return LEVELS.index(alert.level) >= LEVELS.index(self.rules.min_level)

    def _over(self, key: str, why: str, at_s: float) -> Iterator[Alert]:
        known = self._firing.pop(key, None)
        if known is not None:
            text = f"Over after {_span(at_s - known.alert.since_s)}: {why}."
            yield _replace(known.alert, id=f"{known.alert.id}.over", status="resolved", at_s=at_s, text=text)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def _alert(
    kind: str, key: str, level: Level, words: tuple[str, str], at_s: float, about: tuple[str, str] = ("", "")
) -> Alert:
    """``words``: title and text. ``about``: subject and job."""
    return Alert(
        id=f"{key}@{round(at_s * 1000)}",
        key=key,
        kind=kind,
        status="firing",
        level=level,
        title=words[0],
        text=words[1],
        at_s=at_s,
        subject=about[0],
        job=about[1],
        since_s=at_s,
    )


def _waiting(incident: str, job: str, waits_for: str, at_s: float) -> Alert:
    title = f"{job}: incident {incident} waits for a person"
    text = f"{waits_for} Answer with `keepstep approve {incident}` or `keepstep deny {incident}`."
    return _alert("waiting", f"waiting:{incident}", "page", (title, text), at_s, (incident, job))


def _replace(alert: Alert, **changes: object) -> Alert:
    return msgspec.structs.replace(alert, **changes)
