"""What makes an alert: once while it lasts, again after a while, and once when it is over."""

import msgspec
import pytest

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.ids import IncidentId, ResourceId
from keepstep.core.incident import IncidentState
from keepstep.core.intents import Notify
from keepstep.server.alerts import Alerts, Moment, Rules
from keepstep.server.registry import Registry


def told_of(site_of, entries, **rules):
    """Every notice of a journal, in order, and the alerts that made them."""
    site, alerts, told = site_of([]), Alerts(rules=Rules(**rules)), []
    for entry in entries:
        site.books.enter(entry)
        told += alerts.note(site.books.world, entry)
    return told, alerts, site


def note(site, alerts, at_s, *records):
    return [told for e in site.enter(at_s, *records) for told in alerts.note(site.books.world, e)]


def notify(subject, level="warning", message="look"):
    intent = Notify(subject=subject, level=level, message=message)
    return d.Decision(stage="t", subject=subject, reason="", intents=(intent,))


def moved(resource, to):
    change = msgspec.convert({"type": "MoveResource", "resource": resource, "to": to}, d.MoveResource)
    return d.Decision(stage="t", subject=resource, reason="", changes=(change,))


def test_a_wait_for_a_person_is_told_once_and_is_over_when_it_goes_on(recovered, site_of):
    told, _, site = told_of(site_of, recovered)
    waits = [
        c.incident
        for e in recovered
        if isinstance(e.record, d.Decision)
        for c in e.record.changes
        if isinstance(c, d.MoveIncident) and c.to is IncidentState.WAITING
    ]
    assert waits
    waiting = [a for a in told if a.kind == "waiting"]
    assert [(a.subject, a.status) for a in waiting] == [(i, s) for i in waits for s in ("firing", "resolved")]
    first, over = waiting[:2]
    assert first.level == "page"
    assert f"keepstep approve {first.subject}" in first.text
    assert first.job == site.books.world.incidents[IncidentId(first.subject)].job
    assert over.key == first.key and over.id != first.id and over.since_s == first.at_s <= over.at_s
    assert "Over after" in over.text


def test_a_recovery_that_is_given_up_pages_with_its_cause(recovered, site_of):
    told, alerts, site = told_of(site_of, recovered)
    given_up = [i for i in site.books.world.incidents.values() if i.state is IncidentState.ESCALATED]
    (alert,) = [a for a in told if a.kind == "escalated"]
    assert [alert.subject] == [i.id for i in given_up]
    assert alert.level == "page" and given_up[0].job in alert.title
    assert [a.key for a in alerts.firing] == [alert.key], "it lasts until the job runs again"


def test_what_is_less_urgent_than_wanted_is_told_to_nobody(recovered, site_of):
    assert {a.level for a in told_of(site_of, recovered, min_level="page")[0]} == {"page"}


def test_every_notice_has_an_id_of_its_own_and_the_same_in_every_life(journals, site_of):
    entries = journals("storm", 1)
    ids = [a.id for a in told_of(site_of, entries)[0]]
    assert len(ids) == len(set(ids)) > 0
    assert ids == [a.id for a in told_of(site_of, entries)[0]]


def test_the_notice_of_a_resource_is_over_when_it_works_again(site):
    alerts, resource = Alerts(), ResourceId("node/n0")
    site.enter(1.0, f.AgentJoined(node="n0", session="s", boot_id="b"))
    (first,) = note(site, alerts, 2.0, notify(resource, message="it failed the gate"))
    assert (first.kind, first.subject, first.text, first.status) == ("notice", resource, "it failed the gate", "firing")
    assert note(site, alerts, 3.0, notify(resource)) == []
    (over,) = note(site, alerts, 62.0, moved(resource, "in_service"))
    assert (over.status, over.key, over.text) == ("resolved", first.key, "Over after 60 s: it is in service.")
    assert len(note(site, alerts, 70.0, notify(resource))) == 1, "a new condition is told anew"


def test_a_takeover_is_told_and_the_first_start_is_not(site):
    alerts = Alerts()
    assert note(site, alerts, 1.0, f.ServerStarted(server="a", version="1", term=1)) == []
    (told,) = note(site, alerts, 2.0, f.ServerStarted(server="b", version="1", term=2))
    assert told.kind == "leader" and "term 2" in told.text
    assert alerts.firing == []


def test_a_server_that_takes_over_does_not_repeat_what_was_told(recovered, site_of):
    waits = next(
        n
        for n, e in enumerate(recovered)
        if isinstance(e.record, d.Decision)
        and any(isinstance(c, d.MoveIncident) and c.to is IncidentState.WAITING for c in e.record.changes)
    )
    told, _, site = told_of(site_of, recovered[: waits + 1])
    successor = Alerts()
    successor.adopt(site.books.world, recovered[waits + 1].at_s + 1.0)
    assert successor.firing == [a for a in told if a.kind == "waiting"], "with the very same id"
    site.books.enter(recovered[waits + 1])
    rest = [successor.note(site.books.world, recovered[waits + 1])]
    for entry in recovered[waits + 2 :]:
        site.books.enter(entry)
        rest.append(successor.note(site.books.world, entry))
    assert [a.status for told in rest for a in told if a.kind == "waiting"] == ["resolved"]


def test_a_wait_that_begins_with_the_first_pass_of_a_new_leader_is_told(recovered, site_of):
    """The World is folded before its entries are noted: what is in it already need not have been told."""
    told, _, site = told_of(site_of, recovered)
    (first, _) = (a for a in told if a.kind == "waiting")
    at = next(n for n, e in enumerate(recovered) if e.at_s == first.at_s)
    site = site_of([e for e in recovered if e.at_s <= first.at_s])
    successor = Alerts()
    successor.adopt(site.books.world, recovered[at].at_s)
    again = [a for e in recovered[at:] if e.at_s == first.at_s for a in successor.note(site.books.world, e)]
    assert [a.id for a in again if a.kind == "waiting"] == [first.id]


def test_the_journal_must_be_out_of_order_for_a_while(site):
    alerts = Alerts(rules=Rules(journal_s=30.0))
    ask = lambda at_s, error: alerts.tick(Registry(), Moment(now_s=at_s, journal_error=error))  # noqa: E731
    assert ask(0.0, "disk full") == []
    assert ask(29.0, "disk full") == []
    (told,) = ask(30.0, "disk full")
    assert told.kind == "journal" and told.level == "page" and "disk full" in told.text and told.since_s == 0.0
    assert ask(40.0, "disk full") == []
    (over,) = ask(50.0, "")
    assert (over.status, over.key) == ("resolved", told.key)
    assert ask(60.0, "disk full") == [], "from the beginning again"


def test_the_breaker_is_told_while_it_is_open(site):
    alerts = Alerts()
    (told,) = alerts.tick(Registry(), Moment(now_s=1.0, breaker="3 resources were isolated"))
    assert told.kind == "breaker" and "3 resources" in told.text
    assert alerts.tick(Registry(), Moment(now_s=2.0, breaker="4 resources were isolated")) == []
    (over,) = alerts.tick(Registry(), Moment(now_s=9.0))
    assert over.status == "resolved"


def test_a_condition_that_lasts_is_told_again_under_another_id(site):
    alerts = Alerts(rules=Rules(repeat_s=100.0))
    (first,) = alerts.tick(Registry(), Moment(now_s=0.0, breaker="x"))
    assert alerts.tick(Registry(), Moment(now_s=99.0, breaker="x")) == []
    (again,) = alerts.tick(Registry(), Moment(now_s=100.0, breaker="x"))
    (third,) = alerts.tick(Registry(), Moment(now_s=200.0, breaker="x"))
    assert first.key == again.key == third.key and len({first.id, again.id, third.id}) == 3
    assert alerts.tick(Registry(), Moment(now_s=250.0, breaker="x")) == []


@pytest.mark.parametrize("how", ["renewed", "revoked"])
def test_a_certificate_is_complained_about_before_it_runs_out(how):
    registry, alerts = Registry(), Alerts(rules=Rules(certificate_s=100.0))
    registry.note(f.CertificateIssued(serial="a1", role="agent", name="n0", expires_s=1000.0), 0.0)
    assert alerts.tick(registry, Moment(now_s=899.0)) == []
    (told,) = alerts.tick(registry, Moment(now_s=900.0))
    assert told.kind == "certificate" and "n0" in told.text
    if how == "renewed":
        fact = f.CertificateIssued(serial="b2", role="agent", name="n0", expires_s=5000.0, replaces="a1")
    else:
        fact = f.CertificateRevoked(serial="a1", by="a")
    registry.note(fact, 901.0)
    (over,) = alerts.tick(registry, Moment(now_s=902.0))
    assert (over.status, over.key) == ("resolved", told.key)
    assert alerts.tick(registry, Moment(now_s=903.0)) == []
