"""What is counted: the same as the journal says, over restarts too, and bounded whatever the size of the fleet."""

from collections import Counter

import msgspec
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from tests.work import lines_run

from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core.health.forecast import Forecast
from keepstep.core.health.report import HealthReport
from keepstep.core.ids import JobId, NodeId, ResourceId, Session
from keepstep.core.job import JobState
from keepstep.server.metrics import families, metrics_text
from keepstep.server.saves import COMMITTED_MAX, FAILED_MAX
from keepstep.server.tallies import OTHERS, TABLE_MAX, Tallies

SPEC = f.JobSpec(argv=("t",), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1))


def series(site, name):
    """Labels -> value of one metric."""
    (family,) = (family for family in families(site) if family.name == name)
    return {labels if len(labels) != 1 else labels[0]: value for labels, value in family.samples}


def changes(entries):
    return [c for e in entries if isinstance(e.record, d.Decision) for c in e.record.changes]


def test_counters_are_what_the_journal_says(recovered, site_of):
    site = site_of(recovered)
    closed = [site.books.world.incidents[c.incident] for c in changes(recovered) if isinstance(c, d.Close)]
    faults = [i for i in closed if i.kind == "fault"]
    told = series(site, "keepstep_incidents")
    assert sum(told.values()) == len(faults) > 2
    by_outcome = Counter(i.state.value for i in faults)
    assert by_outcome == Counter({o: sum(v for (_, _, x), v in told.items() if x == o) for o in by_outcome})
    assert sum(series(site, "keepstep_lost_gpu_seconds").values()) > 0
    quarantines = [c for c in changes(recovered) if isinstance(c, d.MoveResource) and c.to.value == "quarantined"]
    assert series(site, "keepstep_isolations") == {(): len(quarantines)}
    kinds = Counter(e.record.stage if isinstance(e.record, d.Decision) else type(e.record).__name__ for e in recovered)
    assert series(site, "keepstep_journal_entries") == kinds
    answers = [e for e in recovered if isinstance(e.record, f.Answered)]
    assert 0 < sum(series(site, "keepstep_remediation").values()) <= len(answers)


def test_stages_are_timed_and_split_by_who_agreed(recovered, site_of):
    site = site_of(recovered)
    closed = [site.books.world.incidents[c.incident] for c in changes(recovered) if isinstance(c, d.Close)]
    told = series(site, "keepstep_stage_seconds")
    assert sum(b.count for b in told.values()) == sum(len(i.stage_s) for i in closed)
    assert sum(b.sum for b in told.values()) == pytest.approx(sum(sum(i.stage_s.values()) for i in closed))
    assert {path for _, _, path in told} == ({"manual" if i.grants else "auto" for i in closed})
    assert {group for _, group, _ in told} >= {"start"}


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_counters_go_on_over_a_restart(recovered, site_of, share):
    """A snapshot in the middle, decoded again, and the rest folded over it: the same as without."""
    whole = site_of(recovered)
    at = int(share * len(recovered))
    half = site_of(recovered[:at])
    kept = msgspec.msgpack.encode(half.books.tallies)
    half.books.tallies = msgspec.msgpack.decode(kept, type=Tallies)
    for entry in recovered[at:]:
        half.books.enter(entry)
    assert half.books.tallies == whole.books.tallies


def test_the_time_of_a_job_is_split_by_its_states(site):
    job = JobId("j")
    site.enter(100.0, f.JobSubmitted(job=job, spec=SPEC))
    for at_s, to in ((110.0, JobState.STARTING), (115.0, JobState.RUNNING), (215.0, JobState.RECOVERING)):
        site.enter(at_s, d.Decision(stage="t", subject=job, reason="", changes=(d.MoveJob(job=job, to=to),)))
    site.at_s = 225.0
    assert series(site, "keepstep_job_goodput_seconds") == {
        ("j", "queued"): 10.0, ("j", "starting"): 5.0, ("j", "running"): 100.0, ("j", "recovering"): 10.0,
        ("j", "redone"): 0.0,
    }  # fmt: skip
    assert series(site, "keepstep_job_ettr_ratio") == {"j": 100.0 / 125.0}
    assert series(site, "keepstep_checkpoint_age_seconds") == {"j": 110.0}
    site.enter(225.0, d.Decision(stage="t", subject=job, reason="", changes=(d.MoveJob(job=job, to=JobState.ENDING),)))
    site.enter(226.0, d.Decision(stage="t", subject=job, reason="", changes=(d.MoveJob(job=job, to=JobState.FAILED),)))
    assert series(site, "keepstep_job_goodput_seconds") == {}
    assert series(site, "keepstep_goodput_seconds")["running"] == 100.0
    assert series(site, "keepstep_jobs_ended") == {"failed": 1}


def saved(n, duration_s=2.0):
    return f.CheckpointCommitted(
        job=JobId("j"), generation=1, step=n, key=f"k{n}", world_size=4, duration_s=duration_s, size_bytes=100
    )


def failed(node, step):
    return f.CheckpointFailed(job=JobId("j"), node=NodeId(node), generation=1, step=step, reason="disk full")


def test_a_save_that_every_node_tells_is_counted_once(site):
    """One that its connection held back for long, and one that comes after a restart, as well."""
    site.enter(
        10.0, saved(1), saved(2), saved(1, 2.5), saved(2, 2.5), failed("n0", 3), failed("n1", 3), failed("n0", 4)
    )
    site.books.tallies = msgspec.msgpack.decode(msgspec.msgpack.encode(site.books.tallies), type=Tallies)
    site.enter(600.0, *(saved(n) for n in range(5, 500)), saved(1, 700.0), failed("n2", 3))
    assert series(site, "keepstep_checkpoints") == {"committed": 497, "failed": 2}
    assert series(site, "keepstep_checkpoint_written_bytes") == {(): 497 * 100}
    assert series(site, "keepstep_checkpoint_seconds")["save"].count == 497
    assert site.books.tallies.told.of_job(JobId("j"))[-1].duration_s == 700.0


def test_what_is_remembered_of_saves_is_bounded(site):
    site.enter(10.0, *(saved(n) for n in range(COMMITTED_MAX + 9)), *(failed("n0", n) for n in range(FAILED_MAX + 9)))
    told = site.books.tallies.told
    assert (len(told.committed), len(told.failed)) == (COMMITTED_MAX, FAILED_MAX)
    assert [save.step for save in told.of_job(JobId("j"))][:2] == [COMMITTED_MAX + 8, COMMITTED_MAX + 7]
    assert series(site, "keepstep_checkpoints") == {"committed": COMMITTED_MAX + 9, "failed": FAILED_MAX + 9}


def test_a_job_that_runs_again_is_counted_from_its_new_start(site):
    job = JobId("j")
    site.enter(100.0, f.JobSubmitted(job=job, spec=SPEC))
    for at_s, to in ((101.0, JobState.ENDING), (102.0, JobState.STOPPED)):
        site.enter(at_s, d.Decision(stage="t", subject=job, reason="", changes=(d.MoveJob(job=job, to=to),)))
    site.enter(500.0, f.JobSubmitted(job=job, spec=SPEC, run="second"))
    site.at_s = 503.0
    assert series(site, "keepstep_job_goodput_seconds")["j", "queued"] == 3.0


def test_ten_thousand_nodes_stay_below_five_thousand_series(large):
    told = families(large)
    assert sum(family.series for family in told) < 5000
    body, _ = metrics_text(large)
    lines = [line for line in body.decode().splitlines() if not line.startswith("#")]
    assert 500 < len(lines) < 5000
    entities = series(large, "keepstep_entities")
    assert sum(entities.values()) == 90_000 and entities["device", "in_service"] > 78_000
    assert len(series(large, "keepstep_node_state")) == 200
    assert series(large, "keepstep_nodes_untold")[()] > 1000
    assert series(large, "keepstep_holds") == {("person", ""): 400}
    jobs = series(large, "keepstep_job_ranks")
    assert len(jobs) == 150 and OTHERS in jobs
    times = series(large, "keepstep_job_goodput_seconds")
    assert {job for job, _ in times} == jobs.keys()


def test_the_page_of_ten_thousand_nodes_costs_little(large):
    """The loop waits for it: a few lines for each of the 90,000 things that are counted, and no text of their own."""
    assert lines_run(lambda: metrics_text(large)) < 15 * 90_000


def test_a_full_table_counts_the_rest_together(site):
    for n in range(2 * TABLE_MAX):
        site.enter(1.0, f.RequestRefused(who="w", what=f"what{n}", why="", count=2))
    told = series(site, "keepstep_requests_refused")
    assert len(told) == TABLE_MAX
    assert sum(told.values()) == 4 * TABLE_MAX
    assert told[OTHERS] == 2 * (TABLE_MAX + 1)


def test_health_and_silence_are_distributions(site):
    for n in range(100):
        node, session = NodeId(f"n{n}"), Session(f"s{n}")
        site.enter(50.0, f.AgentJoined(node=node, session=session, boot_id="b"))
        site.vitals.agent_connected(node, session, 100.0 - n)
        forecast = Forecast(rates_per_h=(n / 1e4, n / 1e4, n / 1e4), usual_per_h=1e-6)
        site.vitals.health[node] = HealthReport(at_s=0.0, index=0.0, forecast=forecast, useful_h=1.0, parts=())
    site.at_s = 100.0
    assert series(site, "keepstep_agent_last_seen_seconds") == {"0.5": 49.0, "0.9": 89.0, "0.99": 98.0, "1": 99.0}
    scores = series(site, "keepstep_health_score")
    assert scores["24h", "1"] > scores["24h", "0.5"] > scores["1h", "0.5"] > 0
    assert len(series(site, "keepstep_node_health_score")) == 20 * 3
    site.enter(100.0, f.AgentSilent(node=NodeId("n7"), session=Session("s7"), silent_s=60.0))
    assert series(site, "keepstep_agents") == {"heard": 99, "silent": 1}
    assert series(site, "keepstep_node_agent_last_seen_seconds") == {"n7": 7.0}


def test_a_server_that_follows_tells_of_itself_only(recovered, site_of):
    site = site_of(recovered)
    site.leads = False
    names = {family.name for family in families(site)}
    assert "keepstep_leader" in names and "keepstep_journal_last_entry" in names
    assert "keepstep_incidents" not in names and "keepstep_entities" not in names
    assert series(site, "keepstep_leader") == {(): 0}


def test_verdicts_on_preemptions_are_those_of_the_ledger_and_a_minute_old_at_most(journals, site_of):
    site = site_of(journals("mixed", 1))
    ledger = site.books.history.ledger
    held = [act for act in ledger.acts if act.resource is not None]
    assert held
    assert sum(series(site, "keepstep_rule_acts").values()) == len(held)
    assert sum(series(site, "keepstep_preemptions").values()) == len(ledger.preemptions())
    assert sum(series(site, "keepstep_preemption_verdicts").values()) == len(ledger.preemptions())
    ledger.acts.append(msgspec.structs.replace(held[0]))
    assert sum(series(site, "keepstep_rule_acts").values()) == len(held)
    site.at_s += 60.5
    assert sum(series(site, "keepstep_rule_acts").values()) == len(held) + 1


def test_the_servers_own_figures(site):
    meters = site.meters
    meters.journal(0.002, 5)
    meters.passed(0.004, 90.0)
    meters.connected("agent", +1)
    meters.connected("agent", +1)
    meters.connected("agent", -1)
    meters.notice("webhook w", "sent")
    site.at_s = 93.0
    assert series(site, "keepstep_connections") == {"agent": 1}
    assert series(site, "keepstep_journal_append_seconds")[()].count == 1
    assert series(site, "keepstep_loop_age_seconds") == {(): 3.0}
    assert series(site, "keepstep_journal_available") == {(): 1}
    assert series(site, "keepstep_alerts") == {("webhook w", "sent"): 1}
    meters.journal_failed("disk full")
    assert series(site, "keepstep_journal_available") == {(): 0}
    assert series(site, "keepstep_journal_failures") == {(): 1}
    meters.passed(0.1, 95.0)
    assert series(site, "keepstep_journal_available") == {(): 1}


def test_a_channel_may_count_its_first_failure_while_the_page_is_made(site):
    """Channels count in threads of their own."""

    class Told(tuple):
        def __iter__(self):
            site.meters.notice("webhook other", "failed")
            return super().__iter__()

    site.meters.alerts = {Told(("webhook w", "sent")): 1, ("webhook w", "dropped"): 2}
    assert series(site, "keepstep_alerts") == {("webhook w", "sent"): 1, ("webhook w", "dropped"): 2}


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"])
def test_the_page_says_what_was_measured(recovered, site_of, accept):
    """Read by the parsers of the client library, which share nothing with what wrote it."""
    site = site_of(recovered)
    site.enter(site.at_s, f.RequestRefused(who="w", what='say"\\x\n', why=""))
    body, content_type = metrics_text(site, accept)
    openmetrics = content_type.startswith("application/openmetrics-text")
    assert openmetrics == bool(accept)
    parse = parse_openmetrics if openmetrics else parse_text
    read = {}
    for family in parse(body.decode()):
        for sample in family.samples:
            read[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    for family in families(site):
        for labels, value in family.samples:
            name = f"{family.name}_total" if family.kind == "counter" else family.name
            key = tuple(sorted(zip(family.labels, labels, strict=True)))
            if family.kind == "histogram":
                assert read[f"{name}_count", key] == value.count
                assert read[f"{name}_sum", key] == pytest.approx(value.sum)
                assert read[f"{name}_bucket", tuple(sorted([*key, ("le", "+Inf")]))] == value.count
            elif "age" not in name:
                assert read[name, key] == pytest.approx(value)
    assert read["process_resident_memory_bytes", ()] > 1e6
    assert read["keepstep_requests_refused_total", (("what", 'say"\\x\n'),)] == 1


def test_nothing_is_told_twice(recovered, site_of):
    site = site_of(recovered)
    told = [(family.name, labels) for family in families(site) for labels, _ in family.samples]
    assert len(told) == len(set(told))
    assert len({family.name for family in families(site)}) == len(families(site))


def test_breaker_utilization_follows_recent_isolations(site):
    for n in range(3):
        site.enter(10.0, f.AgentJoined(node=NodeId(f"n{n}"), session=Session("s"), boot_id="b"))
        resource = ResourceId(f"node/n{n}")
        for to in ("in_service", "quarantined"):
            move = msgspec.convert({"type": "MoveResource", "resource": resource, "to": to}, d.MoveResource)
            site.enter(10.0, d.Decision(stage="t", subject=resource, reason="", changes=(move,)))
    assert series(site, "keepstep_breaker_utilization") == {"fleet": 1.0}
    assert series(site, "keepstep_breaker_state") == {"fleet": 1}
    site.at_s = 10.0 + 301.0
    assert series(site, "keepstep_breaker_utilization") == {"fleet": 0.0}
    assert series(site, "keepstep_breaker_state") == {"fleet": 0}
