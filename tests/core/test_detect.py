"""Stage 1: silence, stalls, progress and late answers become facts at their deadline, never before; and the false alarms."""

from collections import deque

import msgspec
import pytest

from keepstep.core import facts as f
from keepstep.core.detect import COMPARE_S, before, deadline, detect, excuse
from keepstep.core.ids import NodeId
from keepstep.core.intents import Fence
from keepstep.core.policy import Hang, Policy
from keepstep.core.vitals import JobVitals, RankSample, Vitals

from .build import JOB, Plane, sample, vitals_of


def found(plane: Plane, vitals: Vitals) -> list[f.Fact]:
    return detect(vitals, plane.world, plane.policy, plane.now_s)


def stall(plane: Plane, *samples: RankSample, times: tuple[float, ...] = (0.1, 0.1, 0.1)) -> f.JobStalled | None:
    stalls = [x for x in found(plane, vitals_of(plane, *samples, times=times)) if isinstance(x, f.JobStalled)]
    assert len(stalls) <= 1
    return stalls[0] if stalls else None


def four(**changed: object) -> list[RankSample]:
    return [sample(rank, **changed) for rank in range(4)]


# ---- stalls


def test_ranks_that_step_are_no_stall() -> None:
    assert stall(Plane().start(), *four()) is None


def test_a_job_that_stands_still_past_its_learned_deadline_is_a_stall() -> None:
    told = stall(Plane().start(), *four(idle_s=5.1))
    assert told is not None
    assert (told.step, told.phase, told.deadline_s, told.stopped) == (10, "step", 5.0, ())


def test_one_rank_that_moves_is_progress_of_the_job() -> None:
    assert stall(Plane().start(), *[sample(r, idle_s=60.0) for r in range(3)], sample(3, idle_s=0.2)) is None


def test_the_rank_that_is_behind_is_named() -> None:
    told = stall(Plane().start(), *[sample(r, idle_s=9.0) for r in (0, 1, 3)], sample(2, step=9, idle_s=9.0))
    assert told is not None
    assert (told.behind, told.step) == ((2,), 9)


def test_a_stall_is_said_once_and_again_only_after_it_moved() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four(idle_s=9.0))
    assert any(isinstance(x, f.JobStalled) for x in found(plane, vitals))
    assert not any(isinstance(x, f.JobStalled) for x in found(plane, vitals))
    for name in ("n0", "n1"):
        vitals.beat(JOB, NodeId(name), plane.now_s, 1, tuple(four(step=11, idle_s=0.0)))
        vitals.beat(JOB, NodeId(name), plane.now_s, 1, tuple(four(step=11, idle_s=9.0)))
    assert any(isinstance(x, f.JobStalled) for x in found(plane, vitals))


def test_a_stopped_rank_is_found_within_its_short_grace() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four()[:3], sample(3, state="T", idle_s=0.6))
    assert not [x for x in found(plane, vitals) if isinstance(x, f.JobStalled)]
    plane.now_s += 0.5
    vitals.beat(JOB, NodeId("n1"), plane.now_s, 1, (sample(3, state="T", idle_s=1.1),))
    told = [x for x in found(plane, vitals) if isinstance(x, f.JobStalled)]
    assert [(x.stopped, x.deadline_s) for x in told] == [((3,), 1.0)]


def test_no_false_alarm_when_a_stopped_job_goes_on_and_beats_of_before_and_after_meet() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four(state="T", idle_s=60.0))
    assert not found(plane, vitals)
    vitals.beat(JOB, NodeId("n0"), plane.now_s, 1, tuple(four()[:2]))
    assert not [x for x in found(plane, vitals) if isinstance(x, f.JobStalled)]
    plane.now_s += 0.125
    vitals.beat(JOB, NodeId("n1"), plane.now_s, 1, tuple(four()[2:]))
    assert not [x for x in found(plane, vitals) if isinstance(x, f.JobStalled)]


def test_a_rank_that_was_stopped_for_a_moment_is_left_alone() -> None:
    assert stall(Plane().start(), *four()[:3], sample(3, state="T", idle_s=0.9)) is None


def test_no_false_alarm_when_the_whole_job_was_stopped() -> None:
    assert stall(Plane().start(), *four(state="T", idle_s=3600.0)) is None


def test_no_false_alarm_while_a_debugger_holds_a_rank() -> None:
    assert stall(Plane().start(), *four(idle_s=3600.0)[:3], sample(3, state="t", idle_s=3600.0)) is None


def test_no_false_alarm_on_a_slow_first_step() -> None:
    plane = Plane().start()
    assert stall(plane, *four(step=-1, idle_s=800.0), times=()) is None
    assert stall(plane, *four(step=-1, idle_s=901.0), times=()) is not None


def test_a_step_deadline_is_learned_only_from_enough_steps() -> None:
    assert stall(Plane().start(), *four(idle_s=60.0), times=(0.1, 0.1)) is None
    assert stall(Plane().start(), *four(idle_s=60.0), times=(0.1, 0.1, 0.1)) is not None


@pytest.mark.parametrize("phase", ["evaluate", "checkpoint", "restore"])
def test_no_false_alarm_on_a_long_phase_that_others_wait_for(phase: str) -> None:
    """Rank 0 evaluates or saves; the others stand in the next step's collective: its clock counts, not theirs."""
    others = [sample(r, idle_s=600.0) for r in (1, 2, 3)]
    assert stall(Plane().start(), sample(0, phase=phase, idle_s=600.0), *others) is None
    late = [sample(r, idle_s=901.0) for r in (1, 2, 3)]
    told = stall(Plane().start(), sample(0, phase=phase, idle_s=901.0), *late)
    assert told is not None
    assert told.phase == phase


def test_a_phase_seen_before_has_a_learned_deadline() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four(phase="evaluate", idle_s=400.0))
    vitals.jobs[JOB].phase_max_s["evaluate"] = 100.0
    assert not [x for x in found(plane, vitals) if isinstance(x, f.JobStalled)]
    vitals = vitals_of(plane, *four(phase="evaluate", idle_s=501.0))
    vitals.jobs[JOB].phase_max_s["evaluate"] = 100.0
    assert [x for x in found(plane, vitals) if isinstance(x, f.JobStalled)]


def test_deadlines_follow_the_median_the_slowest_step_and_the_floors() -> None:
    hang = Hang()

    def of(*times: float) -> float:
        vitals = JobVitals()
        vitals.step_times_s.extend(times)
        return deadline(vitals, "step", hang)

    assert of(0.01, 0.01, 0.01) == hang.step_floor_s
    assert of(1.0, 1.0, 1.0) == 20.0
    assert of(1.0, 1.0, 10.0) == 40.0, "a slow step now and then is normal for this job"
    short = JobVitals(phase_max_s={"checkpoint": 1.0})
    assert deadline(short, "checkpoint", hang) == hang.phase_floor_s


def test_after_a_false_alarm_every_deadline_of_the_job_grows() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four(idle_s=9.0))
    assert any(isinstance(x, f.JobStalled) for x in found(plane, vitals))
    excuse(vitals, JOB, plane.policy.hang)
    assert not any(isinstance(x, f.JobStalled) for x in found(plane, vitals))
    assert deadline(vitals.jobs[JOB], "step", plane.policy.hang) == 10.0


def test_ranks_that_ended_are_no_part_of_a_stall() -> None:
    plane = Plane().start()
    plane.tell(*(plane.exited(rank, code=0) for rank in (0, 1)))
    assert stall(plane, *[sample(r, idle_s=99.0, step=5) for r in (0, 1)], sample(2), sample(3)) is None
    plane.tell(*(plane.exited(rank, code=0) for rank in (2, 3)))
    assert stall(plane, *four(idle_s=99.0)) is None


def test_vitals_of_another_generation_say_nothing() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four(idle_s=9.0))
    vitals.jobs[JOB].generation = 2
    assert found(plane, vitals) == []


# ---- silence


def test_a_launcher_is_silent_after_the_lease_and_heard_again_at_once() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane)
    plane.now_s += plane.policy.silence.lease_s - 0.01
    assert found(plane, vitals) == []
    vitals.beat(JOB, NodeId("n0"), plane.now_s, 1, ())
    plane.now_s += 0.02
    told = found(plane, vitals)
    assert [(type(x), x.node) for x in told if isinstance(x, f.NodeUnreachable)] == [(f.NodeUnreachable, "n1")]
    assert found(plane, vitals) == []
    vitals.beat(JOB, NodeId("n1"), plane.now_s, 1, ())
    assert [type(x) for x in found(plane, vitals)] == [f.NodeReachable]


def test_a_broken_connection_is_silence_at_once_but_a_quick_reconnect_is_not() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane)
    vitals.disconnected(JOB, NodeId("n0"), plane.session("n0"))
    assert found(plane, vitals) == []
    plane.now_s += 0.06
    told = found(plane, vitals)
    assert [x.connection_lost for x in told if isinstance(x, f.NodeUnreachable)] == [True]


def test_a_server_that_was_stopped_itself_holds_its_lost_time_against_nobody() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane)
    plane.now_s += 60.0
    vitals.stood_still(60.0, plane.now_s)
    assert found(plane, vitals) == []


def test_an_older_session_does_not_cut_the_present_one_off() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane)
    vitals.disconnected(JOB, NodeId("n0"), plane.session("n0") + "-old")  # type: ignore[arg-type]
    plane.now_s += 1.0
    assert found(plane, vitals) == []


# ---- beats


def test_beats_of_an_older_generation_are_dropped_and_of_a_newer_one_begin_anew() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four())
    vitals.beat(JOB, NodeId("n0"), plane.now_s, 0, (sample(0, step=99),))
    assert vitals.jobs[JOB].ranks[0].step == 10
    vitals.beat(JOB, NodeId("n0"), plane.now_s, 2, (sample(0, step=3),))
    assert list(vitals.jobs[JOB].ranks) == [0]
    assert vitals.jobs[JOB].ranks[0].step == 3


def test_a_job_that_is_over_leaves_nothing_in_memory() -> None:
    vitals = vitals_of(Plane().start(), *four())
    vitals.forget(JOB)
    assert not vitals.nodes
    assert not vitals.jobs


# ---- progress


def test_progress_is_no_fact_while_nobody_waits_for_it() -> None:
    plane = Plane().start()
    assert found(plane, vitals_of(plane, *four(step=500))) == []


def test_progress_is_the_step_that_all_ranks_completed() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled())
    vitals = vitals_of(plane, *[sample(r, step=13, loss=2.0 + r) for r in range(3)], sample(3, step=12, loss=5.0))
    told = [x for x in found(plane, vitals) if isinstance(x, f.StepsAdvanced)]
    assert [(x.step, x.ranks, x.loss) for x in told] == [(12, 4, 2.0 * 3 / 4 + 3 / 4 + 5.0 / 4)]
    assert not [x for x in found(plane, vitals) if isinstance(x, f.StepsAdvanced)], "said once"


def test_no_progress_is_told_while_a_rank_is_missing() -> None:
    plane = Plane().start()
    plane.tell(plane.stalled())
    vitals = vitals_of(plane, *[sample(r, step=13) for r in range(3)])
    assert not [x for x in found(plane, vitals) if isinstance(x, f.StepsAdvanced)]


def test_what_a_job_had_reached_is_journalled_ahead_of_its_symptom() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four(step=77))
    ahead = before(plane.exited(0, signal=9), vitals, plane.world)
    assert ahead is not None
    assert ahead.step == 77
    assert before(f.ProbeFailed(source="x", job=JOB), vitals, plane.world) is None
    assert before(plane.exited(0, signal=9), Vitals(), plane.world) is None


# ---- late answers


def test_an_order_is_overdue_once_at_its_time_out() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    numbers = [n for n, _ in plane.pending(Fence)]
    plane.now_s += plane.policy.orders.timeout_s["Fence"] - 0.01
    assert found(plane, Vitals()) == []
    plane.now_s += 0.02
    told = [x for x in found(plane, Vitals()) if isinstance(x, f.Overdue)]
    assert [x.intent for x in told] == numbers
    assert found(plane, Vitals()) == []


def test_an_answered_order_is_never_overdue() -> None:
    plane = Plane().start()
    plane.tell(plane.exited(1, signal=9))
    plane.recover()
    plane.now_s += 3600.0
    assert [x for x in found(plane, Vitals()) if isinstance(x, f.Overdue)] == []


def test_policy_moves_every_deadline() -> None:
    slow = Policy(hang=Hang(step_floor_s=50.0, stop_grace_s=30.0))
    plane = Plane(slow).start()
    assert stall(plane, *four(idle_s=49.0)) is None
    assert stall(plane, *four()[:3], sample(3, state="T", idle_s=29.0)) is None
    tight = Plane(
        msgspec.structs.replace(slow, hang=Hang(step_floor_s=1.0, step_median_factor=2.0, step_max_factor=2.0))
    )
    assert stall(tight.start(), *four(idle_s=1.5)) is not None


# ---- slow ranks, slow jobs


def steps(*each: list[float]) -> dict[int, deque[float]]:
    return {rank: deque(times) for rank, times in enumerate(each)}


def slower(plane: Plane, vitals: Vitals) -> list[f.StepsSlower]:
    plane.now_s += COMPARE_S
    return [x for x in found(plane, vitals) if isinstance(x, f.StepsSlower)]


def test_a_rank_that_is_slower_than_its_peers_is_named_once() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four())
    vitals.jobs[JOB].rank_steps_s = steps(*([0.1 + 0.0001 * (n % 3) for n in range(40)] for _ in range(3)), [0.13] * 40)
    (told,) = slower(plane, vitals)
    assert (told.ranks, told.against) == ((3,), "peers")
    assert not slower(plane, vitals)
    plane.tell(told)
    assert plane.job.slower == told and plane.job.incident is None


def test_a_job_that_becomes_slower_as_a_whole_is_said_and_nothing_is_done() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four())
    vitals.jobs[JOB].rank_steps_s = steps(*([0.1] * 30 + [0.15] * 30 for _ in range(4)))
    (told,) = slower(plane, vitals)
    assert (told.ranks, told.against) == ((), "self") and told.ratio > 1.4


def test_steps_that_only_scatter_are_not_slower() -> None:
    plane = Plane().start()
    vitals = vitals_of(plane, *four())
    vitals.jobs[JOB].rank_steps_s = steps(
        *([0.1 + 0.01 * ((n * 7 + rank * 3) % 5) for n in range(60)] for rank in range(4))
    )
    assert not slower(plane, vitals)
