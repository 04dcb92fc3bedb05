"""Writes a journal of one recovery through the real engine: rank 3 of 4 is killed at step 20, step 20 comes back."""

from collections.abc import Callable, Mapping
from pathlib import Path

from keepstep.adapters.database.opening import open_journal
from keepstep.core import facts as f
from keepstep.core.engine import turn
from keepstep.core.fold import fold
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Fence, Intent, Launch, VerifyCheckpoint
from keepstep.core.policy import Policy
from keepstep.core.world import World

JOB = "demo-recorded"
NODES = ("n0", "n1", "n2")


class Recorder:
    """The control plane without its processes; every fact and decision goes to the journal, as in the server."""

    def __init__(self, path: Path) -> None:
        self.world, self.now_s, self._policy = World(), 1000.0, Policy()
        self._journal = open_journal(path)

    def tell(self, *facts: f.Fact) -> None:
        for fact in facts:
            self._journal.append(self.now_s, [fact])
            fold(self.world, fact, self.now_s)
        made = turn(self.world, self._policy, self.now_s)
        if made:
            self._journal.append(self.now_s, made)
        self.now_s += 0.125

    def answer(self, kind: type[Intent], outcome: Callable[[Intent], f.Outcome]) -> None:
        """Every order of this kind that waits for an answer."""
        waiting = [(number, p.intent) for number, p in self.world.orders.items() if isinstance(p.intent, kind)]
        assert waiting, f"no {kind.__name__} is pending"
        for number, intent in waiting:
            self.tell(f.Answered(intent=number, outcome=outcome(intent)))

    def step(self, generation: int, step: int) -> None:
        self.tell(f.StepsAdvanced(job=JobId(JOB), generation=generation, step=step, ranks=4, loss=2.5, step_time_s=0.1))

    def close(self) -> None:
        self._journal.close()


def start(recorder: Recorder, pids: Mapping[int, int], launchers: Mapping[str, tuple[int, int]]) -> None:
    """A job on n0 and n1 that has done 20 steps. ``pids``: of the ranks; ``launchers``: pid and start time by node."""
    spec = f.JobSpec(
        argv=("train.py",), nproc_per_node=2, elasticity=f.Elasticity(min_nodes=2, max_nodes=2), checkpoint_dir="/none"
    )
    recorder.tell(f.JobSubmitted(job=JobId(JOB), spec=spec))
    for node in NODES:
        pid, started = launchers.get(node, (0, 0))
        recorder.tell(
            f.NodeJoined(
                job=JobId(JOB), node=NodeId(node), session=Session(f"s-{node}"), boot_id="boot",
                devices=tuple(f.Device(slot=slot, serial=f"{node}-{slot}") for slot in (0, 1)), address="127.0.0.1",
                store="127.0.0.1:1", pid=pid, pid_start=started, spare=node == "n2",
            )
        )  # fmt: skip
    launch(recorder, pids)
    recorder.step(1, 2)
    recorder.step(1, 20)


def launch(recorder: Recorder, pids: Mapping[int, int]) -> None:
    def launched(intent: Intent) -> f.Outcome:
        assert isinstance(intent, Launch)
        return f.Launched(pids={place.rank: pids.get(place.rank, 0) for place in intent.ranks})

    recorder.answer(Launch, launched)


def lose_rank(recorder: Recorder) -> None:
    recorder.tell(
        f.RankExited(
            job=JobId(JOB), node=NodeId("n1"), session=Session("s-n1"), generation=1, rank=3, slot=1, signal=9, step=20
        )
    )


def record(path: Path) -> None:
    recorder = Recorder(path)
    start(recorder, {}, {})
    lose_rank(recorder)
    offer = f.DiskOffer(step=20, generation=1, world_size=4, key="0" * 19 + "2")
    stock = f.Inventory(disk=(offer,))
    recorder.answer(Fence, lambda order: f.Fenced(generation=1, proof="killed", store="127.0.0.1:2", inventory=stock))
    recorder.answer(VerifyCheckpoint, lambda order: f.CheckpointVerified(key=offer.key))
    launch(recorder, {})
    recorder.step(2, 21)
    recorder.step(2, 22)
    recorder.close()
