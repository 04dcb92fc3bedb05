"""A hand-made control plane for the table tests: a World, a clock and the journal that they produce. No I/O, no threads."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from keepstep.core import facts as f
from keepstep.core.decision import Decision, Record
from keepstep.core.engine import replay, turn
from keepstep.core.fold import fold
from keepstep.core.ids import JobId, NodeId, ResourceId, Session, device_resource, node_resource
from keepstep.core.incident import Incident, IncidentState
from keepstep.core.intents import CollectStacks, Fence, Intent, Launch, VerifyCheckpoint
from keepstep.core.job import Job, JobState
from keepstep.core.policy import Policy
from keepstep.core.resource import Resource
from keepstep.core.vitals import JobVitals, RankSample, Vitals
from keepstep.core.world import World

JOB = JobId("job")
NAN = float("nan")
I = TypeVar("I", bound=Intent)  # noqa: E741

Outcome = f.Outcome | Callable[[Intent], f.Outcome]


class Plane:
    """One control plane with one job. Facts go in through ``tell``; every fact is followed by a turn."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy(
            max_decisions_per_turn=500, max_decisions_per_resource=0
        )  # one that does not settle is seen soon
        self.world = World()
        self.now_s = 1000.0
        self.journal: list[tuple[float, Record]] = []
        self.decisions: list[Decision] = []
        self.sessions: dict[str, int] = {}
        self.inventories: dict[str, f.Inventory] = {}
        self.labels: dict[str, str] = {}
        self.stores = 0

    # ---- driving

    def fold(self, *facts: f.Fact) -> None:
        """Facts without a turn: several that arrive in one batch."""
        for fact in facts:
            self.journal.append((self.now_s, fact))
            fold(self.world, fact, self.now_s)

    def turn(self) -> list[Decision]:
        made = turn(self.world, self.policy, self.now_s)
        self.journal += [(self.now_s, decision) for decision in made]
        self.decisions += made
        return made

    def tell(self, *facts: f.Fact) -> list[Decision]:
        self.fold(*facts)
        return self.turn()

    def wait(self, seconds: float) -> list[Decision]:
        self.now_s += seconds
        return self.turn()

    def pending(self, kind: type[I]) -> list[tuple[int, I]]:
        """Unanswered orders of one kind, oldest first."""
        return [(n, p.intent) for n, p in self.world.orders.items() if isinstance(p.intent, kind)]

    def answer(self, kind: type[I], outcome: Outcome, *, node: str = "") -> list[Decision]:
        """Answer every pending order of a kind (of one node); each answer is followed by a turn."""
        made: list[Decision] = []
        asked = [(n, i) for n, i in self.pending(kind) if not node or getattr(i, "node", "") == node]
        assert asked, f"no {kind.__name__} is pending on {node or 'any node'}: {list(self.world.orders.values())}"
        for number, intent in asked:
            made += self.tell(f.Answered(intent=number, outcome=outcome(intent) if callable(outcome) else outcome))
        return made

    # ---- the road of one recovery

    def fence_all(self) -> None:
        self.answer(Fence, self.fenced)

    def fenced(self, intent: Intent) -> f.Fenced:
        assert isinstance(intent, Fence)
        return f.Fenced(
            generation=intent.generation,
            proof="killed",
            killed=2,
            store=self.new_store(intent.node),
            inventory=self.inventories.get(intent.node),
        )

    def verify_all(self) -> None:
        """Everything that is asked to be verified is good."""
        while self.pending(VerifyCheckpoint):
            self.answer(VerifyCheckpoint, verified)

    def launch_all(self) -> None:
        self.answer(Launch, launched)

    def recover(self, *, step: int | None = None, loss: float | None = None) -> None:
        """Play a fault-free world from the fence to the end of the verification."""
        if self.pending(Fence):
            self.fence_all()
        self.verify_all()
        self.launch_all()
        assert self.incident.state is IncidentState.VERIFYING, self.incident.state
        restored = self.job.restored.step if self.job.restored else 0
        self.now_s += 0.125  # exact in binary, so that deadlines in the tests are exact
        self.tell(self.steps(step if step is not None else restored + self.policy.verify.steps, loss=loss))

    def start(self, *, step: int = 10, loss: float = 2.0, **spec: object) -> "Plane":
        """A job that runs on its nodes and has completed ``step`` steps."""
        self.submit(**spec)  # type: ignore[arg-type]
        self.recover(step=step, loss=loss)
        assert self.job.state is JobState.RUNNING, self.job.state
        self.decisions.clear()
        return self

    def submit(
        self,
        *,
        nodes: int = 2,
        spares: int = 0,
        nproc: int = 2,
        min_nodes: int | None = None,
        grain: int = 1,
        capacity_wait_s: float | None = None,
        join: bool = True,
    ) -> None:
        elasticity = f.Elasticity(min_nodes=nodes if min_nodes is None else min_nodes, max_nodes=nodes, step=grain)
        spec = f.JobSpec(
            argv=("train.py",), nproc_per_node=nproc, elasticity=elasticity, capacity_wait_s=capacity_wait_s,
            labels=self.labels,
        )  # fmt: skip
        self.tell(f.JobSubmitted(job=JOB, spec=spec, by="test"))
        if join:
            names = [f"n{i}" for i in range(nodes + spares)]
            self.tell(*(self.joined(n, nproc=nproc, spare=i >= nodes) for i, n in enumerate(names)))

    # ---- looking

    @property
    def job(self) -> Job:
        return self.world.jobs[JOB]

    @property
    def incident(self) -> Incident:
        """The newest one."""
        return list(self.world.incidents.values())[-1]

    def resource(self, name: str) -> Resource:
        return self.world.resources[ResourceId(name)]

    def reasons(self) -> str:
        return "\n".join(f"{d.stage} {d.subject}: {d.reason}" for d in self.decisions)

    def state_of(self, name: str) -> str:
        return self.resource(name).state.value

    def session(self, node: str) -> Session:
        return Session(f"{node}-{self.sessions.get(node, 0)}")

    def new_store(self, node: str) -> str:
        self.stores += 1
        return f"{node}:{4000 + self.stores}"

    # ---- facts

    def joined(
        self,
        node: str,
        *,
        nproc: int = 2,
        spare: bool = False,
        boot: str = "boot-1",
        serial: str = "",
        rack: str = "",
        running: int | None = None,
    ) -> f.NodeJoined:
        """A hello. ``running`` None: of a session that is known, its ranks are still there; of a new one, none are."""
        known = self.world.jobs[JOB].launchers.get(NodeId(node)) if JOB in self.world.jobs else None
        if running is None:
            running = known.running if known is not None and known.session == self.session(node) else 0
        devices = tuple(f.Device(slot=s, serial=serial or f"{node}-gpu{s}") for s in range(nproc))
        return f.NodeJoined(
            job=JOB, node=NodeId(node), session=self.session(node), boot_id=boot, devices=devices, address=node,
            rack=rack, pid=100, pid_start=7, store=self.new_store(node), snapshots=f"{node}:9000", spare=spare,
            running_generation=running, inventory=self.inventories.get(node),
        )  # fmt: skip

    def exited(
        self,
        rank: int,
        *,
        signal: int | None = None,
        code: int | None = None,
        error: f.ErrorRecord | None = None,
        step: int = 10,
        generation: int | None = None,
        session: Session | None = None,
    ) -> f.RankExited:
        placement = self.job.placement
        assert placement is not None
        for node, ranks in placement.nodes.items():
            for place in ranks:
                if place.rank == rank:
                    return f.RankExited(
                        job=JOB, node=node, session=session or self.session(node), rank=rank, slot=place.slot,
                        generation=self.job.generation if generation is None else generation, step=step,
                        signal=signal, exit_code=code, error=error,
                    )  # fmt: skip
        raise AssertionError(f"no rank {rank} in {placement}")

    def steps(self, step: int, *, loss: float | None = None, generation: int | None = None) -> f.StepsAdvanced:
        size = self.job.placement.world_size if self.job.placement else 0
        return f.StepsAdvanced(
            job=JOB, generation=self.job.generation if generation is None else generation, step=step, ranks=size,
            loss=loss, step_time_s=0.1,
        )  # fmt: skip

    def stalled(
        self, *, stopped: tuple[int, ...] = (), behind: tuple[int, ...] = (), phase: str = "step", seconds: float = 6.0
    ) -> f.JobStalled:
        return f.JobStalled(
            job=JOB, generation=self.job.generation, phase=phase, step=max(self.job.step, 0), stalled_s=seconds,
            deadline_s=5.0, stopped=stopped, behind=behind,
        )  # fmt: skip

    def silent(self, node: str, *, seconds: float = 3.0, lost: bool = False) -> f.NodeUnreachable:
        return f.NodeUnreachable(
            job=JOB, node=NodeId(node), session=self.session(node), silent_s=seconds, connection_lost=lost
        )

    def heard(self, node: str) -> f.NodeReachable:
        return f.NodeReachable(job=JOB, node=NodeId(node), session=self.session(node))

    def left(self, node: str) -> f.NodeLeft:
        return f.NodeLeft(job=JOB, node=NodeId(node), session=self.session(node), reason="left")

    def witnessed(self, node: str, verdict: str, *, session: Session | None = None) -> f.Witnessed:
        return f.Witnessed(
            job=JOB, node=NodeId(node), session=session or self.session(node), witness="host",
            verdict=verdict,  # type: ignore[arg-type]
        )  # fmt: skip


def verified(intent: Intent) -> f.CheckpointVerified:
    assert isinstance(intent, VerifyCheckpoint)
    return f.CheckpointVerified(key=intent.restore.key)


def rejected(intent: Intent) -> f.CheckpointRejected:
    assert isinstance(intent, VerifyCheckpoint)
    return f.CheckpointRejected(key=intent.restore.key, reason="digest of shard 1 differs")


def launched(intent: Intent) -> f.Launched:
    assert isinstance(intent, Launch)
    return f.Launched(pids={place.rank: 500 + place.rank for place in intent.ranks})


def stacks(*taken: f.RankStack) -> Outcome:
    """Answers CollectStacks: each node tells of the ranks that were handed in, whoever asks."""

    def outcome(intent: Intent) -> f.Outcome:
        assert isinstance(intent, CollectStacks)
        return f.StacksTaken(stacks=taken if intent.node == "n0" else ())

    return outcome


def waiting(rank: int) -> f.RankStack:
    return f.RankStack(rank=rank, frames=("distributed.py:9 all_reduce",), process_state="S", waiting=True)


def working(rank: int, *, cpu_s: float = 0.14, state: str = "R") -> f.RankStack:
    return f.RankStack(rank=rank, frames=(f"train.py:{40 + rank} forward",), process_state=state, cpu_s=cpu_s)


def disk(step: int, *, key: str = "", generation: int = 1, size: int = 4) -> f.DiskOffer:
    return f.DiskOffer(step=step, generation=generation, world_size=size, key=key or f"disk-{step}")


def ram(step: int, parts: dict[int, tuple[str, ...]], held: tuple[str, ...], *, size: int = 4) -> f.RamOffer:
    return f.RamOffer(step=step, generation=1, world_size=size, parts=parts, held=held)


def bug(signature: str = "ValueError@train.py:7", kind: str = "ValueError") -> f.ErrorRecord:
    return f.ErrorRecord(kind=kind, message="wrong shape", signature=signature)


def victim() -> f.ErrorRecord:
    return f.ErrorRecord(kind="NCCL", message="connection reset by peer", signature="victim", victim=True)


def killed_fence(generation: int) -> f.Fenced:
    return f.Fenced(generation=generation, proof="killed")


def device(node: str, slot: int) -> ResourceId:
    return device_resource(NodeId(node), slot)


def node(name: str) -> ResourceId:
    return node_resource(NodeId(name))


def sample(rank: int, **changed: object) -> RankSample:
    """A rank that is fine, but for what is changed."""
    good: dict[str, object] = {
        "rank": rank, "phase": "step", "step": 10, "idle_s": 0.05, "phase_s": 0.05, "step_time_s": 0.1, "loss": NAN,
        "state": "R", "cpu_s": 1.0,
    }  # fmt: skip
    return RankSample(**{**good, **changed})  # type: ignore[arg-type]


def vitals_of(plane: Plane, *samples: RankSample, times: tuple[float, ...] = (0.1, 0.1, 0.1)) -> Vitals:
    """Vitals in which every launcher of the job was heard just now and the ranks are as given."""
    vitals = Vitals()
    for name, launcher in plane.job.launchers.items():
        vitals.connected(JOB, name, launcher.session, plane.now_s)
    job = JobVitals(generation=plane.job.generation, ranks={s.rank: s for s in samples})
    job.step_times_s.extend(times)
    vitals.jobs[JOB] = job
    return vitals


_record = msgspec.msgpack.Decoder(Record)


def replayed(plane: Plane) -> World:
    """The World that the plane's journal gives, after each record has been through bytes."""
    world = World()
    for at_s, record in plane.journal:
        replay(world, _record.decode(msgspec.msgpack.encode(record)), at_s)
    return world
