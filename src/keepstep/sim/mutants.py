"""Planted bugs that the simulator must catch, and the runner that plants them. Owns the list; touches nothing for good.

A mutant replaces attributes of the engine's modules for as long as its runs last. It counts as caught only if a checker or
an invariant raised, never if the mutant's own code crashed.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from keepstep.core import (
    apply,
    assess,
    budget,
    diagnose,
    engine,
    fold,
    invariants,
    isolate,
    lifecycle,
    place,
    rehearse,
    remediate,
    restart,
    select,
)
from keepstep.core import decision as d
from keepstep.core import facts as f
from keepstep.core import suspects as s
from keepstep.core.apply import mark_fenced
from keepstep.core.catalog.row import Verdict as ResourceVerdict
from keepstep.core.drill import Drill, Mark
from keepstep.core.ids import NodeId
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.intents import Fence, PowerOff, VerifyCheckpoint
from keepstep.core.job import Job, JobState, Launcher
from keepstep.core.policy import Policy
from keepstep.core.resource import Resource
from keepstep.core.world import World
from keepstep.sim import server
from keepstep.sim.run import Result, run
from keepstep.sim.server import SimServer

Patch = tuple[Any, Any, Any]
"""(module, class or dict; name or key; replacement)."""


class Mutant(NamedTuple):
    name: str
    scenario: str
    patches: Callable[[], list[Patch]]
    seeds: int = 12


class Verdict(NamedTuple):
    caught_by: str
    """Checker or invariant; empty where it survived."""
    seed: int
    """The seed that caught it, or the last one that was tried."""


def _stage(state: IncidentState, wrap: Callable[[Any], Any]) -> list[Patch]:
    return [(engine.STAGES, state, wrap(engine.STAGES[state]))]


def _launch_without_fence() -> list[Patch]:
    def stage(incident: Incident, world: World, policy: Policy, now_s: float) -> d.Decision:
        move = d.MoveIncident(incident=incident.id, to=IncidentState.SELECTING)
        return d.Decision(stage="isolate", subject=incident.id, reason="in a hurry", changes=(move,))

    return _stage(IncidentState.ISOLATING, lambda _: stage)


def _fence_survivors_not() -> list[Patch]:
    true = isolate.isolate

    def stage(incident: Incident, world: World, policy: Policy, now_s: float) -> d.Decision | None:
        decision = true(incident, world, policy, now_s)
        diagnosis = incident.attempt.diagnosis
        if decision is None or diagnosis is None or not diagnosis.lost_nodes:
            return decision
        fences = tuple(i for i in decision.intents if not isinstance(i, Fence) or i.node in diagnosis.lost_nodes)
        if not fences and not decision.changes:
            return None
        return msgspec.structs.replace(decision, intents=fences)

    def blind(world: World, intent: Any, decision: d.Decision) -> None:
        """The invariant that would see it is out of order too: the checkers are alone."""

    def moves_on(incident: Incident, world: World, policy: Policy, now_s: float) -> d.Decision | None:
        decision = stage(incident, world, policy, now_s)
        diagnosis = incident.attempt.diagnosis
        waits_for = diagnosis.lost_nodes if diagnosis is not None else ()
        if decision is None and waits_for and all(node in incident.attempt.fenced for node in waits_for):
            move = d.MoveIncident(incident=incident.id, to=IncidentState.SELECTING)
            return d.Decision(stage="isolate", subject=incident.id, reason="in a hurry", changes=(move,))
        return decision

    return [*_stage(IncidentState.ISOLATING, lambda _: moves_on), (invariants, "_check_start", blind)]


def _ignore_session() -> list[Patch]:
    def launcher_of(world: World, job: Any, node: NodeId, session: Any) -> tuple[Job, Launcher] | None:
        owner = world.jobs.get(job)
        launcher = owner.launchers.get(node) if owner is not None else None
        return (owner, launcher) if owner is not None and launcher is not None else None

    return [(fold, "launcher_of", launcher_of)]


def _no_holds() -> list[Patch]:
    def dismiss(world: World, policy: Policy, now_s: float) -> d.Decision | None:
        if not world.signals:
            return None
        done = d.Assess(entry=world.signals[0].entry, verdict=ResourceVerdict.BENIGN)
        return d.Decision(stage="isolate", subject="signals", reason="never mind", changes=(done,))

    return [(engine, "assess", dismiss), (isolate, "_hold_named", lambda *_: None)]


def _forget_signals() -> list[Patch]:
    true = assess.assess

    def hold(world: World, policy: Policy, now_s: float) -> d.Decision | None:
        if world.signals and world.open_incidents:
            done = d.Assess(entry=world.signals[0].entry, verdict=ResourceVerdict.BENIGN)
            return d.Decision(stage="isolate", subject="signals", reason="busy", changes=(done,))
        return true(world, policy, now_s)

    return [(engine, "assess", hold)]


def _restore_without_verify() -> list[Patch]:
    true = select.select

    def stage(incident: Incident, world: World, policy: Policy, now_s: float) -> d.Decision | None:
        decision = true(incident, world, policy, now_s)
        if decision is None or not any(isinstance(i, VerifyCheckpoint) for i in decision.intents):
            return decision
        move = d.MoveIncident(incident=incident.id, to=IncidentState.PLACING)
        return msgspec.structs.replace(decision, intents=(), changes=(*decision.changes, move))

    return _stage(IncidentState.SELECTING, lambda _: stage)


def _disk_only() -> list[Patch]:
    return [(select, "_from_ram", lambda alive: [])]


def _oldest_first() -> list[Patch]:
    true = select.candidates
    return [(select, "candidates", lambda job, attempt: true(job, attempt)[::-1])]


def _stale_listing() -> list[Patch]:
    true = select.candidates

    def candidates(job: Job, attempt: Any) -> Any:
        known, job.committed = job.committed, []
        try:
            return true(job, attempt)
        finally:
            job.committed = known

    return [(select, "candidates", candidates)]


def _incomplete_is_fine() -> list[Patch]:
    def cover(size: int, parts: Any) -> dict[NodeId, tuple[str, ...]]:
        return {launcher.node: offer.held for launcher, offer in parts if offer.held}

    return [(select, "_cover", cover)]


def _choice_is_final() -> list[Patch]:
    return [(select, "outdated", lambda *_: False), (place, "outdated", lambda *_: False)]


def _forget_evidence() -> list[Patch]:
    true = apply._apply_to_incident

    def change(world: World, item: Incident, what: Any, *rest: Any) -> None:
        true(world, item, what, *rest)
        if isinstance(what, d.Join) and item.state is not IncidentState.OPEN:
            item.undiagnosed = []

    return [(apply, "_apply_to_incident", change)]


def _generation_stays() -> list[Patch]:
    true = place._placement

    def placement(job: Job, world: World, chosen: Any) -> Any:
        return msgspec.structs.replace(true(job, world, chosen), generation=max(1, job.generation))

    return [(place, "_placement", placement)]


def _relaunch() -> list[Patch]:
    true = restart.restart

    def stage(incident: Incident, world: World, policy: Policy, now_s: float) -> d.Decision | None:
        decision = true(incident, world, policy, now_s)
        if decision is None and now_s - incident.entered_s > 0.3:
            return restart._launch(incident, world.job_of(incident))
        return decision

    return _stage(IncidentState.RESTARTING, lambda _: stage)


def _lift_persons_hold() -> list[Patch]:
    true = remediate._return

    def lift(resource: Resource, *rest: Any) -> d.Decision:
        decision = true(resource, *rest)
        drops = tuple(d.DropHold(resource=resource.id, source=source) for source in resource.holds)
        others = tuple(c for c in decision.changes if not isinstance(c, d.DropHold))
        return msgspec.structs.replace(decision, changes=(*drops, *others))

    return [(remediate, "_return", lift)]


def _breaker_off() -> list[Patch]:
    return [(isolate, "breaker", lambda *_: "")]


def _breaker_touches_world() -> list[Patch]:
    true = isolate.breaker

    def breaker(world: World, policy: Policy, more: int, now_s: float) -> str:
        while world.isolations and now_s - world.isolations[0][0] >= policy.breaker.window_s / 20:
            world.isolations.popleft()
        return true(world, policy, more, now_s)

    return [(isolate, "breaker", breaker)]


def _stale_rank_exit() -> list[Patch]:
    true = fold._rank_exited

    def exited(world: World, fact: f.RankExited, seen: Any) -> None:
        job = world.jobs[fact.job]
        launcher = job.launchers.get(fact.node)
        if launcher is not None:
            fact = msgspec.structs.replace(fact, generation=job.generation, session=launcher.session)
        true(world, fact, seen)

    return [(fold, "_rank_exited", exited)]


def _silence_is_death() -> list[Patch]:
    true = fold._of_launcher

    def of_launcher(world: World, fact: Any, seen: Any) -> None:
        true(world, fact, seen)
        if isinstance(fact, f.NodeUnreachable) and fact.node in world.jobs[fact.job].launchers:
            world.jobs[fact.job].launchers[fact.node].gone = "silent"

    return [(fold, "_of_launcher", of_launcher)]


def _failed_gate_counts() -> list[Patch]:
    true = fold._gate

    def gate(world: World, fact: f.GateFinished, seen: Any) -> None:
        true(world, msgspec.structs.replace(fact, passed=True), seen)

    return [(fold, "_gate", gate)]


def _gate_of_another_boot() -> list[Patch]:
    true = fold._gate

    def gate(world: World, fact: f.GateFinished, seen: Any) -> None:
        resource = world.resources.get(fact.resource)
        if resource is not None:
            fact = msgspec.structs.replace(
                fact, boot_id=resource.boot_id, serial=resource.serial, firmware=resource.firmware, run=0
            )
        true(world, fact, seen)

    return [(fold, "_gate", gate)]


def _proof_too_early() -> list[Patch]:
    true = isolate._has_fenced_itself

    def fenced(launcher: Launcher, alive: Any, job: Job, policy: Policy, now_s: float) -> bool:
        return true(launcher, alive, job, policy, now_s + 22.0)

    return [(isolate, "_has_fenced_itself", fenced)]


def _overdue_is_proof() -> list[Patch]:
    true = fold.fold

    def folded(world: World, fact: f.Fact, at_s: float) -> None:
        pending = world.orders.get(fact.intent) if isinstance(fact, f.Overdue) else None
        true(world, fact, at_s)
        if pending is not None and isinstance(pending.intent, Fence):
            job = world.jobs[pending.intent.job]
            mark_fenced(world, job, pending.intent.node, pending.intent.generation, "overdue", at_s)

    return [(server, "fold", folded), (engine, "fold", folded)]


def _no_budget() -> list[Patch]:
    return [(budget, "refusal", lambda *_: "")]


def _store_again() -> list[Patch]:
    true = apply._place

    def placed(world: World, item: Incident, change: d.Place) -> None:
        host = world.jobs[change.job].launchers[change.store_node] if change.store_node is not None else None
        store = host.store if host is not None else ""
        true(world, item, change)
        if host is not None:
            host.store = store

    true_fenced = fold._fenced

    def fenced(world: World, intent: Any, outcome: f.Fenced, *rest: Any) -> None:
        true_fenced(world, intent, msgspec.structs.replace(outcome, store=""), *rest)

    return [(apply, "_place", placed), (fold, "_fenced", fenced)]


def _count_no_failures() -> list[Patch]:
    return [(s, "_failures_of", lambda *_: -100)]


def _power_off_at_once() -> list[Patch]:
    true = isolate._cannot_fence

    def cannot(incident: Incident, alive: list[Launcher], policy: Policy, now_s: float) -> d.Decision | None:
        decision = true(incident, alive, policy, now_s + 110.0)
        if decision is None:
            return None
        orders = tuple(PowerOff(job=incident.job, node=x.node, session=x.session, generation=x.running) for x in alive)
        return msgspec.structs.replace(decision, changes=(), intents=orders)

    return [(isolate, "_cannot_fence", cannot)]


def _everything_is_no_fault() -> list[Patch]:
    def stage(incident: Incident, world: World, policy: Policy, now_s: float) -> d.Decision:
        move = d.MoveIncident(incident=incident.id, to=IncidentState.NO_FAULT)
        return d.Decision(stage="diagnose", subject=incident.id, reason="it will pass", changes=(move,))

    return _stage(IncidentState.OPEN, lambda _: stage)


def _tell_nobody() -> list[Patch]:
    def finish(job: Job, world: World) -> d.Decision:
        move = d.MoveJob(job=job.id, to=JobState.STOPPED if job.stop_requested else JobState.FAILED)
        return d.Decision(stage="finish", subject=job.id, reason="they will notice", changes=(move,))

    return [
        (lifecycle, "_finish", finish),
        (SimServer, "_tell_end", lambda *_: None),
        (SimServer, "greet", _greet_live),
    ]


def _greet_live(server: SimServer, launcher: Any) -> int:
    """As the true greeting of a job that lives: nobody hears that it has ended."""
    server.vitals.connected(launcher.job.id, launcher.node, launcher.session, server.now_s)
    return server.journal.received.get(launcher.session, 0)


def _charge_drills() -> list[Patch]:
    return [(diagnose, "is_rehearsed", lambda *_: False)]


def _excuse_everything() -> list[Patch]:
    return [(diagnose, "is_rehearsed", lambda job, _, world: rehearse.running_drill(world, job.id) is not None)]


def _drill_whenever() -> list[Patch]:
    true = rehearse.unfit

    def unfit(job: Job, *rest: Any) -> str:
        return true(job, *rest) if job.placement is None or job.generation == 0 else ""

    return [(rehearse, "unfit", unfit), (invariants, "_check_drill", lambda *_: None)]


def _ignore_refusals() -> list[Patch]:
    true = rehearse._step

    def step(drill: Drill, *rest: Any) -> d.Decision | None:
        refused, drill.refused = drill.refused, ""
        try:
            return true(drill, *rest)
        finally:
            drill.refused = refused

    return [(rehearse, "_step", step)]


def _wait_for_ever() -> list[Patch]:
    true = rehearse._begin

    def begin(drill: Drill, job: Job, world: World, policy: Policy, now_s: float) -> d.Decision | None:
        return true(drill, job, world, policy, min(now_s, drill.asked_s))

    return [(rehearse, "_begin", begin)]


def _whoever_was_named() -> list[Patch]:
    true = rehearse.score

    def score(*known: Any) -> Iterator[Mark]:
        for mark in true(*known):
            yield msgspec.structs.replace(mark, good=mark.good or mark.question == "blamed")

    return [(rehearse, "score", score)]


MUTANTS: tuple[Mutant, ...] = (
    Mutant("launch without waiting for fences", "mixed", _launch_without_fence),
    Mutant("survivors are not fenced, and the invariant is blind", "partition", _fence_survivors_not, 30),
    Mutant("the session of a fact is ignored", "mixed", _ignore_session, 30),
    Mutant("nothing is held", "storm", _no_holds),
    Mutant("signals are forgotten while an incident is open", "storm", _forget_signals, 20),
    Mutant("restore without verification", "mixed", _restore_without_verify),
    Mutant("newest state by disk only", "mixed", _disk_only),
    Mutant("oldest state first", "mixed", _oldest_first),
    Mutant("only what nodes listed long ago", "mixed", _stale_listing, 40),
    Mutant("an incomplete state is complete", "mixed", _incomplete_is_fine, 40),
    Mutant("the first choice of a state is final", "mixed", _choice_is_final, 60),
    Mutant("evidence during a recovery is forgotten", "program", _forget_evidence, 30),
    Mutant("the generation does not grow", "mixed", _generation_stays),
    Mutant("a launch is ordered again", "mixed", _relaunch),
    Mutant("a person's hold is lifted by the engine", "storm", _lift_persons_hold, 60),
    Mutant("the breaker is off", "storm", _breaker_off, 20),
    Mutant("a verdict changes the World", "storm", _breaker_touches_world, 20),
    Mutant("a stale end of a rank counts", "mixed", _stale_rank_exit, 30),
    Mutant("silence is death", "silence", _silence_is_death),
    Mutant("a gate that failed counts as passed", "storm", _failed_gate_counts, 20),
    Mutant("a gate of another boot counts", "storm", _gate_of_another_boot, 30),
    Mutant("the self-fence deadline passes too early", "partition", _proof_too_early, 40),
    Mutant("a late answer is proof of death", "partition", _overdue_is_proof, 40),
    Mutant("budgets are never charged", "program", _no_budget, 20),
    Mutant("a rendezvous store is used twice", "mixed", _store_again),
    Mutant("failures of a device are not counted", "program", _count_no_failures, 40),
    Mutant("power-off without approval", "partition", _power_off_at_once, 20),
    Mutant("every incident is no fault", "mixed", _everything_is_no_fault),
    Mutant("nobody is told that the job ended", "program", _tell_nobody, 20),
    Mutant("what a drill did is charged", "drills", _charge_drills),
    Mutant("a drill excuses every fault", "drills", _excuse_everything, 20),
    Mutant("a drill begins while its job recovers", "drills", _drill_whenever),
    Mutant("what the launcher refused is forgotten", "drills", _ignore_refusals),
    Mutant("a drill waits for ever", "drills", _wait_for_ever, 40),
    Mutant("a drill passes whoever was named", "drills", _whoever_was_named, 40),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The mutant's bug is in the engine; afterwards it is not."""
    patches = mutant.patches()
    before = [owner[name] if isinstance(owner, dict) else getattr(owner, name) for owner, name, _ in patches]
    try:
        for owner, name, new in patches:
            _put(owner, name, new)
        yield
    finally:
        for (owner, name, _), old in zip(patches, before, strict=True):
            _put(owner, name, old)


def _put(owner: Any, name: Any, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    else:
        setattr(owner, name, value)


def hunt(mutant: Mutant) -> Verdict:
    """Run seeds until one catches it. Raises RuntimeError where the mutant's own code crashed."""
    with planted(mutant):
        for seed in range(mutant.seeds):
            result: Result = run(mutant.scenario, seed)
            if result.failure is None:
                continue
            if result.failure.kind == "error":
                raise RuntimeError(f"mutant {mutant.name!r} crashed at seed {seed}: {result.failure.text}")
            return Verdict(result.failure.name, seed)
    return Verdict("", mutant.seeds - 1)
