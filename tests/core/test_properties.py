"""Whatever is said, in whatever order, however often: no invariant breaks, and the journal alone gives the same World."""

from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.core import facts as f
from keepstep.core.drill import KINDS, DrillKind
from keepstep.core.ids import NodeId, Session, device_resource, node_of, node_resource, slot_of
from keepstep.core.intents import (
    CollectStacks,
    Fence,
    Inject,
    Intent,
    Launch,
    PowerOff,
    RunGate,
    VerifyCheckpoint,
)  # fmt: skip
from keepstep.core.policy import Capacity, Policy

from .build import JOB, Plane, bug, device, disk, launched, ram, replayed, victim, waiting, working

NODES = ("n0", "n1", "n2")
FULL = {0: ("a", "s"), 1: ("b", "s"), 2: ("c", "s"), 3: ("d", "s")}
DIGESTS = ("a", "b", "c", "d", "s")

names = st.sampled_from(NODES)
ranks = st.integers(0, 3)
generations = st.integers(-1, 1)
"""Distance to the present generation."""

inventories = st.one_of(
    st.none(),
    st.builds(
        lambda disks, held: f.Inventory(
            disk=tuple(disk(s) for s in disks), ram=(ram(max(disks, default=5), FULL, tuple(held)),)
        ),
        st.lists(st.sampled_from((4, 8, 12)), max_size=3, unique=True),
        st.lists(st.sampled_from(DIGESTS), unique=True),
    ),
)

said = st.one_of(
    st.tuples(st.just("exit"), ranks, generations, st.sampled_from(("kill", "bug", "device", "victim", "clean"))),
    st.tuples(st.just("stall"), st.booleans()),
    st.tuples(st.just("steps"), generations, st.integers(0, 30), st.sampled_from((None, 1.0, 99.0, float("inf")))),
    st.tuples(st.just("silent"), names, st.booleans()),
    st.tuples(st.just("heard"), names),
    st.tuples(
        st.just("witness"), names, st.sampled_from(("alive", "process_gone", "host_off", "rebooted", "no_answer"))
    ),
    st.tuples(st.just("join"), names, st.booleans(), inventories),
    st.tuples(st.just("left"), names),
    st.tuples(st.just("signal"), names, st.integers(0, 1), st.sampled_from(("device.lost", "device.thermal", "x"))),
    st.tuples(st.just("hold"), names, st.integers(0, 1), st.booleans()),
    st.tuples(st.just("gate"), names, st.integers(0, 1), st.sampled_from((True, False, None))),
    st.tuples(st.just("approve"), st.booleans()),
    st.tuples(st.just("stop")),
    st.tuples(st.just("commit"), st.sampled_from((4, 8, 12))),
)
acts = st.one_of(
    said,
    said,
    st.tuples(
        st.just("answer"), st.integers(0, 5), st.sampled_from(("good", "good", "good", "bad", "odd")), inventories
    ),
    st.tuples(st.just("answer"), st.integers(0, 5), st.just("good"), inventories),
    st.tuples(st.just("late"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from((0.1, 1.0, 5.0, 30.0, 120.0, 1000.0, 4000.0))),
    st.tuples(st.just("again"), st.integers(0, 20)),
)
drills = st.tuples(st.just("drill"), st.sampled_from(list(KINDS)), st.none() | ranks)


class Chaos:
    """Turns drawn acts into facts about one job."""

    def __init__(self, *, elastic: bool, turn_at_once: bool) -> None:
        self.plane = Plane(
            Policy(capacity=Capacity(wait_s=2000.0), max_decisions_per_turn=200, max_decisions_per_resource=0)
        )
        self.plane.submit(nodes=2, spares=1, min_nodes=1 if elastic else 2)
        self.turn_at_once = turn_at_once
        self.told: list[f.Fact] = []

    def do(self, act: tuple) -> None:  # type: ignore[type-arg]
        kind, *rest = act
        if kind == "wait":
            self.plane.wait(rest[0])
            return
        fact = getattr(self, kind)(*rest)
        if fact is None:
            return
        self.told.append(fact)
        self.plane.fold(fact)
        if self.turn_at_once:
            self.plane.turn()

    def exit(self, rank: int, distance: int, how: str) -> f.Fact | None:
        placement = self.plane.job.placement
        if placement is None or placement.node_of_rank(rank) is None:
            return None
        end = {"kill": {"signal": 9}, "bug": {"error": bug()}, "device": {"error": bug(kind="DeviceFault")},
               "victim": {"error": victim()}, "clean": {"code": 0}}[how]  # fmt: skip
        return self.plane.exited(rank, generation=self.plane.job.generation + distance, **end)  # type: ignore[arg-type]

    def stall(self, stopped: bool) -> f.Fact:
        return self.plane.stalled(stopped=(1,) if stopped else ())

    def steps(self, distance: int, step: int, loss: float | None) -> f.Fact:
        return self.plane.steps(step, loss=loss, generation=self.plane.job.generation + distance)

    def silent(self, name: str, lost: bool) -> f.Fact:
        return self.plane.silent(name, lost=lost)

    def heard(self, name: str) -> f.Fact:
        return self.plane.heard(name)

    def witness(self, name: str, verdict: str) -> f.Fact:
        return self.plane.witnessed(name, verdict)

    def join(self, name: str, new: bool, inventory: f.Inventory | None) -> f.Fact:
        if new:
            self.plane.sessions[name] = self.plane.sessions.get(name, 0) + 1
        self.plane.inventories = {} if inventory is None else {name: inventory}
        return self.plane.joined(name, boot=f"boot-{self.plane.sessions.get(name, 0)}")

    def left(self, name: str) -> f.Fact:
        return self.plane.left(name)

    def signal(self, name: str, slot: int, signal: str) -> f.Fact:
        return f.SignalSeen(resource=device(name, slot), signal=signal)

    def hold(self, name: str, slot: int, lift: bool) -> f.Fact:
        if lift:
            return f.HoldLifted(resource=device(name, slot), source="person:eve", by="eve")
        return f.HoldRequested(resource=device(name, slot), source="person:eve", by="eve")

    def gate(self, name: str, slot: int, passed: bool | None) -> f.Fact | None:
        resource = self.plane.world.resources.get(device_resource(NodeId(name), slot))
        if resource is None:
            return None
        return f.GateFinished(
            resource=resource.id, serial=resource.serial, boot_id=resource.boot_id, firmware="", passed=passed
        )

    def drill(self, kind: DrillKind, rank: int | None) -> f.Fact:
        return f.DrillRequested(job=JOB, kind=kind, by="eve", rank=rank)

    def approve(self, granted: bool) -> f.Fact:
        return f.Approved(subject=self.plane.incident.id, by="eve", granted=granted)

    def stop(self) -> f.Fact | None:
        return f.JobStopRequested(job=JOB, by="eve") if len(self.told) > 25 else None

    def commit(self, step: int) -> f.Fact:
        return f.CheckpointCommitted(
            job=JOB, generation=self.plane.job.generation, step=step, key=f"disk-{step}", world_size=4
        )

    def answer(self, which: int, how: str, inventory: f.Inventory | None) -> f.Fact | None:
        orders = list(self.plane.world.orders.items())
        if not orders:
            return None
        number, pending = orders[which % len(orders)]
        if how == "bad":
            return f.Answered(intent=number, outcome=f.Failed(reason="no"))
        if how == "odd":
            return f.Answered(intent=number, outcome=f.Done(detail="odd"))
        return f.Answered(intent=number, outcome=self.good(pending.intent, inventory))

    def good(self, intent: Intent, inventory: f.Inventory | None) -> f.Outcome:
        match intent:
            case Fence() | PowerOff():
                return f.Fenced(
                    generation=intent.generation, proof="killed", inventory=inventory,
                    store=self.plane.new_store(intent.node),
                )  # fmt: skip
            case Launch():
                return launched(intent)
            case CollectStacks():
                return f.StacksTaken(stacks=(waiting(0), working(1, cpu_s=0.0)))
            case VerifyCheckpoint():
                return f.CheckpointVerified(key=intent.restore.key)
            case RunGate():
                return f.Done()
            case _:
                return f.Done()

    def late(self, which: int) -> f.Fact | None:
        orders = list(self.plane.world.orders)
        return f.Overdue(intent=orders[which % len(orders)], waited_s=1.0) if orders else None

    def again(self, which: int) -> f.Fact | None:
        """The same word a second time, late."""
        return self.told[which % len(self.told)] if self.told else None


def one_story(plane: Plane) -> None:
    """What must hold after every turn, seen from outside of the engine."""
    world = plane.world
    assert not world.signals
    leading = [i for i in world.incidents.values() if i.open]
    assert len(leading) <= 1, "a job has at most one open incident"
    if leading:
        assert plane.job.incident == leading[0].id
    running = {x.running for x in plane.job.launchers.values() if x.running}
    assert len(running) <= 1, f"generations {running} may be alive at once"
    assert running <= {plane.job.generation}
    for launcher in plane.job.launchers.values():
        assert launcher.running == 0 or launcher.running > launcher.fenced
    for order in world.orders.values():
        assert order.number < world.next_order
    under_way = [x for x in world.open_drills if world.drills[x].injected_s is not None]
    assert len(under_way) <= 1, "one drill at a time"
    told = [order.intent.drill for order in world.orders.values() if isinstance(order.intent, Inject)]
    assert all(drill in under_way for drill in told), "an order does not outlive its drill"
    for drill in world.drills.values():
        assert drill.incident is None or world.incidents[drill.incident].drill == drill.id


@settings(max_examples=150, deadline=None, derandomize=True)
@given(st.lists(acts, min_size=5, max_size=60), st.booleans(), st.booleans())
def test_no_sequence_of_facts_breaks_an_invariant_and_replay_gives_the_same_world(
    drawn: list[tuple],
    elastic: bool,
    turn_at_once: bool,  # type: ignore[type-arg]
) -> None:
    chaos = Chaos(elastic=elastic, turn_at_once=turn_at_once)
    for index, act in enumerate(drawn):
        chaos.do(act)
        if turn_at_once or index % 4 == 3:
            chaos.plane.turn()
            one_story(chaos.plane)
    chaos.plane.turn()
    one_story(chaos.plane)
    # Compared as text: the floats must be the same bits, and NaN and infinity are told as what they are.
    assert repr(replayed(chaos.plane)) == repr(chaos.plane.world)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(acts, min_size=5, max_size=60), st.booleans())
def test_every_story_ends_when_the_world_keeps_silent(drawn: list[tuple], elastic: bool) -> None:  # type: ignore[type-arg]
    """Invariant 9: no answer, no fact, only time: every incident ends, whatever came before."""
    chaos = Chaos(elastic=elastic, turn_at_once=True)
    for act in drawn:
        chaos.do(act)
    everything_ends(chaos.plane)


def everything_ends(plane: Plane) -> None:
    for _ in range(400):
        for number in list(plane.world.orders):
            plane.tell(f.Overdue(intent=number, waited_s=900.0))
        plane.wait(900.0)
        if not plane.world.open_incidents and not plane.world.open_drills:
            return
    raise AssertionError(f"after 100 hours {plane.incident.id} is still {plane.incident.state}: {plane.reasons()}")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.one_of(drills, acts, acts), min_size=3, max_size=25))
def test_drills_keep_their_rules_whatever_happens_beside_them(drawn: list[tuple]) -> None:  # type: ignore[type-arg]
    chaos = Chaos(elastic=False, turn_at_once=True)
    chaos.plane.recover(step=10)
    for act in [("drill", "kill-rank", None), *drawn]:
        chaos.do(act)
        one_story(chaos.plane)
    everything_ends(chaos.plane)
    assert repr(replayed(chaos.plane)) == repr(chaos.plane.world)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(said, min_size=1, max_size=30), st.integers(1, 9))
def test_words_of_another_session_change_nothing(drawn: list[tuple], other: int) -> None:  # type: ignore[type-arg]
    """Invariant 8: the same facts, but from a launcher that nobody knows, leave the job as it was."""
    chaos = Chaos(elastic=False, turn_at_once=True)
    chaos.plane.recover(step=10)
    before = repr((chaos.plane.job, chaos.plane.world.incidents))
    for kind, *rest in drawn:
        if kind not in ("exit", "silent", "heard", "witness", "left"):
            continue
        fact = getattr(chaos, kind)(*rest)
        if fact is not None:
            from_elsewhere = {
                **{k: getattr(fact, k) for k in fact.__struct_fields__},
                "session": Session(f"other-{other}"),
            }
            chaos.plane.tell(type(fact)(**from_elsewhere))
    assert repr((chaos.plane.job, chaos.plane.world.incidents)) == before


def test_the_name_of_a_resource_leads_back_to_its_node() -> None:
    for name in NODES:
        assert node_of(node_resource(NodeId(name))) == name
        assert slot_of(node_resource(NodeId(name))) is None
        assert (node_of(device(name, 3)), slot_of(device(name, 3))) == (name, 3)
