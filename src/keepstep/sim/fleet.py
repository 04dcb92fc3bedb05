"""The physics of the fleet: ranks start, step, fail, finish, save; launchers and machines come and go. Ground truth.

Owns what really happens and who would see it. It does not know what the engine thinks, and asks nothing of it.
"""

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from keepstep.core.facts import CheckpointCommitted, CheckpointFailed, ErrorRecord, RankExited
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.core.intents import Launch, Restore
from keepstep.sim.checkers import Checkers
from keepstep.sim.clock import Timeline
from keepstep.sim.launcher import SimLauncher
from keepstep.sim.machine import Machine, Snapshot
from keepstep.sim.network import Network
from keepstep.sim.probes import Probes
from keepstep.sim.scenario import Fleet
from keepstep.sim.training import Run, SimJob, SimRank, draw_lag

if TYPE_CHECKING:
    from keepstep.sim.agent import SimAgent
    from keepstep.sim.drills import SimDrills

VICTIM = ErrorRecord(kind="RuntimeError", message="connection reset by peer", signature="victim", victim=True)
_JOIN_S = (0.05, 3.0)
_BOOT_S = (20.0, 90.0)
_RETRY_S = 2.0
"""For so long the ranks of a generation find the same thing when they restore: looking costs time in large fleets."""
_ORPHAN_S = (0.0, 2.0)
"""How long ranks may outlive their launcher before the kernel's signal has ended them."""


class FleetState:
    def __init__(self, timeline: Timeline, rng: Random, options: Fleet, network: Network) -> None:
        self.timeline, self.rng, self.options, self.network = timeline, rng, options, network
        self.machines: dict[NodeId, Machine] = {}
        self.jobs: dict[JobId, SimJob] = {}
        self.launchers: dict[tuple[JobId, NodeId], SimLauncher] = {}
        """The newest launcher of each job and node."""
        self.agents: dict[Session, SimAgent] = {}
        """Agents by the session of their present life; none where the scenario has no hardware of its own."""
        self.drills: SimDrills
        self.on_power: list[Callable[[Machine], None]] = []
        """Told after a machine has lost its power or has booted."""
        self.stores_used: dict[str, tuple[JobId, int]] = {}
        self.unreadable: dict[tuple[JobId, str], None] = {}
        """States that some reader could not read, although they may be sound."""
        self.probes = Probes()
        self.checkers = Checkers(self)
        self.launch_failure_share = options.launch_failure_share
        self.verify_failure_share = options.verify_failure_share
        self._slow: dict[str, float] = {}
        self.memory_hurt_s = -1e9
        """When something last happened to the memory tier of any job."""
        self._pids = 1000
        self._sessions = 0

    @property
    def now_s(self) -> float:
        return self.timeline.now_s

    def next_pid(self) -> int:
        self._pids += 100
        return self._pids

    def slowness(self, kind: str) -> float:
        return self._slow.get(kind, 1.0)

    def slow_down(self, kind: str, factor: float, for_s: float) -> None:
        self._slow[kind] = factor

        def over() -> None:
            self._slow.pop(kind, None)

        self.timeline.after(for_s, over)

    # ---- launchers and machines

    def join(self, job: SimJob, machine: Machine, *, spare: bool = False, after_s: float | None = None) -> None:
        """Start a launcher on a machine; it replaces one that is dead."""
        delay_s = self.rng.uniform(*_JOIN_S) if after_s is None else after_s
        self.timeline.after(delay_s, lambda: self._join(job, machine, spare))

    def _join(self, job: SimJob, machine: Machine, spare: bool) -> None:
        known = self.launchers.get((job.id, machine.node))
        if job.ended or not machine.on or (known is not None and known.alive):
            return
        if known is not None:
            self.probes.hit("new session replaced an old one")
        self._sessions += 1
        launcher = SimLauncher(self, job, machine, Session(f"{machine.node}-s{self._sessions}"), spare)
        self.launchers[job.id, machine.node] = launcher
        self.network.attach(launcher)
        if self.options.explicit_beats:
            self._beat(launcher)

    def _beat(self, launcher: SimLauncher) -> None:
        if launcher.alive:
            launcher.beat()
            self.timeline.after(self.options.beat_s, lambda: self._beat(launcher))

    def watch_lease(self, launcher: SimLauncher) -> None:
        """Implicit beats: a launcher that was cut off looks at its lease once a second, as it would with every beat."""
        if self.options.explicit_beats:
            return
        launcher.heard_s = self.now_s

        def look() -> None:
            if launcher.alive and not self.network.connected(launcher.session):
                launcher.beat()
                self.timeline.after(1.0, look)

        self.timeline.after(1.0, look)

    def launcher_killed(self, launcher: SimLauncher, *, noticed: bool = True) -> None:
        """The process is gone; its memory tier with it, its ranks a moment later."""
        if not launcher.alive:
            return
        launcher.alive = False
        self.memory_hurt_s = self.now_s
        self.network.detach(launcher.session, noticed=noticed)
        launcher.machine.memory.pop(launcher.job.id, None)
        for rank in [r for r in launcher.job.alive() if r.session == launcher.session]:
            self.timeline.after(self.rng.uniform(*_ORPHAN_S), lambda rank=rank: self.rank_gone(rank))  # type: ignore[misc]
        self._stores_gone(launcher)

    def _stores_gone(self, launcher: SimLauncher) -> None:
        """A store that goes down while ranks still meet there: they cannot start."""
        run = launcher.job.run()
        if run is not None and "starting" in run.blocks and run.store.startswith(f"{launcher.session}:"):
            for rank in [r for r in run.ranks.values() if r.alive and not r.ready]:
                self.timeline.after(1.0, lambda rank=rank: self.rank_ended(rank, error=VICTIM))  # type: ignore[misc]

    def machine_off(self, machine: Machine, *, reboot: bool) -> None:
        for job in self.jobs.values():
            launcher = self.launchers.get((job.id, machine.node))
            if launcher is not None and launcher.alive:
                launcher.alive = False
                self.network.detach(launcher.session, noticed=False)
                self.network.server.watch(launcher)
                self._stores_gone(launcher)
            for rank in [r for r in job.alive() if r.node == machine.node]:
                self.rank_gone(rank)
        machine.power_off()
        self.memory_hurt_s = self.now_s
        for notice in self.on_power:
            notice(machine)
        if reboot:
            self.timeline.after(self.rng.uniform(*_BOOT_S), lambda: self.machine_on(machine))

    def machine_on(self, machine: Machine) -> None:
        """Boot it, and start launchers for the jobs that had one here."""
        if machine.on:
            return
        machine.power_on()
        for notice in self.on_power:
            notice(machine)
        for job in self.jobs.values():
            known = self.launchers.get((job.id, machine.node))
            if known is not None and not job.ended:
                self.join(job, machine, spare=known.spare, after_s=self.rng.uniform(2.0, 15.0))

    # ---- ranks

    def alive_here(self, launcher: SimLauncher) -> list[SimRank]:
        run = launcher.job.runs.get(launcher.running)
        return run.alive_on(launcher.node, launcher.session) if run is not None else []

    def start(self, launcher: SimLauncher, launch: Launch, number: int) -> None:
        job = launcher.job
        run = job.runs.get(launch.generation)
        if run is None:
            base = launch.restore.step if launch.restore is not None else 0
            wrong = launch.restore is not None and self._is_poisoned(job, launch.restore)
            wrong = launch.restore is not None and launch.restore.key == job.bad_loss_key
            run = Run(job.id, launch.generation, launch.world_size, launch.restore, job.step_time_s, base, self.now_s)
            run.store, run.poisoned, run.faulty = launch.store, wrong, wrong or self.slowness("start") > 1.0
            run.still_since_s = self.now_s
            job.runs[launch.generation] = run
        while len(run.nodes) <= launch.group_rank:
            run.nodes.append(NodeId(""))
        run.nodes[launch.group_rank] = launcher.node
        draw_lag(job, run, launcher.node, self.rng)
        for place in launch.ranks:
            rank = SimRank(job.id, place.rank, launcher.node, place.slot, launch.generation, launcher.session)
            self.checkers.rank_starts(job, run, rank, launch, number)
            run.ranks[place.rank] = rank
            run.by_node.setdefault(launcher.node, []).append(rank)
            job.live.setdefault(launcher.node, []).append(rank)
            delay_s = self.rng.uniform(*self.options.launch_s) * self.slowness("start")
            self.timeline.after(delay_s, lambda rank=rank: self._ready(job, run, rank))  # type: ignore[misc]

    def _is_poisoned(self, job: SimJob, restore: Restore) -> bool:
        writer = job.runs.get(restore.generation)
        return restore.key == job.bad_loss_key or (writer is not None and writer.poisoned)

    def _ready(self, job: SimJob, run: Run, rank: SimRank) -> None:
        if not rank.alive or rank.stopped:
            return
        if self.now_s - run.restore_tried_s > _RETRY_S:
            run.restore_tried_s, run.cannot_restore = self.now_s, self._cannot_restore(job, run)
        why = run.cannot_restore
        if why:
            error = ErrorRecord(kind="StateInvalid", message=why, signature="state")
            self.rank_ended(rank, error=error)
            return
        rank.ready = True
        ready = [r for r in run.ranks.values() if r.ready and r.alive]
        if len(ready) == run.world_size:
            self.unblock(run, "starting")

    def _cannot_restore(self, job: SimJob, run: Run) -> str:
        restore = run.restore
        if restore is None:
            return ""
        if restore.tier == "disk":
            return self._disk_damage(job, restore)
        held: dict[str, None] = {}
        needed: dict[int, tuple[str, ...]] = {}
        for (owner, node), launcher in self.launchers.items():
            if owner != job.id or not launcher.alive or f"{node}:snap" not in restore.peers:
                continue
            for snapshot in launcher.machine.memory.get(job.id, []):
                if (snapshot.step, snapshot.generation) == (restore.step, restore.generation) and not snapshot.rotten:
                    held.update(dict.fromkeys(snapshot.held))
                    needed.update(snapshot.parts)
        missing = [r for r in range(restore.world_size) if r not in needed or any(d not in held for d in needed[r])]
        return f"the state of rank {missing[0]} at step {restore.step} is in no memory" if missing else ""

    def _disk_damage(self, job: SimJob, restore: Restore) -> str:
        checkpoint = job.disk.get(restore.key)
        return checkpoint.damage if checkpoint is not None else f"{restore.key} does not exist"

    def why_unreadable(self, launcher: SimLauncher, restore: Restore, held: tuple[str, ...]) -> str:
        """What a verification on this node finds; empty where the state is sound as far as this node holds it."""
        if restore.tier == "disk":
            return self._disk_damage(launcher.job, restore)
        here: dict[str, None] = {}
        for s in self.memory_of(launcher):
            if (s.step, s.generation) == (restore.step, restore.generation) and not s.rotten:
                here.update(dict.fromkeys(s.held))
        missing = next((digest for digest in held if digest not in here), "")
        return f"digest {missing} is missing or does not match" if missing else ""

    def memory_of(self, launcher: SimLauncher) -> list[Snapshot]:
        """Every snapshot in the memory of a node, sealed ones and those of the ranks that run now."""
        if not launcher.alive:
            return []
        run = launcher.job.runs.get(launcher.running)
        if run is not None:
            launcher.machine.keep(launcher.job.id, launcher.job.snapshots_on(run, launcher.node, self.now_s))
        return launcher.machine.memory.get(launcher.job.id, [])

    def kill(self, launcher: SimLauncher, why: str) -> int:
        """End every rank of the job on the launcher's node; their snapshots stay. Returns how many were alive."""
        job, node = launcher.job, launcher.node
        self.memory_of(launcher)
        alive = list(job.live.get(node, ()))
        for rank in alive:
            self.checkers.killed(job, job.runs[rank.generation], why)
            self.rank_gone(rank)
        return len(alive)

    def rank_gone(self, rank: SimRank) -> None:
        """It is dead, and nobody says so."""
        if not rank.alive:
            return
        job = self.jobs[rank.job]
        run = job.runs[rank.generation]
        launcher = self.launchers.get((job.id, rank.node))
        if launcher is not None and launcher.session == rank.session:
            self.memory_of(launcher)
        rank.alive = False
        job.live[rank.node].remove(rank)
        if rank.rank not in run.finished:
            run.faulty = True
            if "dead" not in run.blocks:
                self.block(run, "dead")
                self._peers_suffer(run)

    def block(self, run: Run, why: str) -> None:
        """Something keeps a generation from stepping."""
        run.block(why, self.now_s)
        self.network.server.blocked(run)

    def unblock(self, run: Run, why: str) -> None:
        """It does not any more."""
        run.unblock(why, self.now_s)
        self.plan(self.jobs[run.job], run)

    def _peers_suffer(self, run: Run) -> None:
        """Peers of a dead rank raise after a while, or wait in their collective for ever."""
        for peer in run.ranks.values():
            if peer.alive and not peer.hung and not peer.stopped and self.rng.random() < 0.15:
                delay_s = self.rng.uniform(0.02, 3.0)
                self.timeline.after(delay_s, lambda peer=peer: self.rank_ended(peer, error=VICTIM))  # type: ignore[misc]

    def rank_ended(
        self, rank: SimRank, *, exit_code: int | None = 1, signal: int | None = None, error: ErrorRecord | None = None
    ) -> None:
        """It ended, and its launcher sees it."""
        if not rank.alive:
            return
        job = self.jobs[rank.job]
        run = job.runs[rank.generation]
        if exit_code == 0 and error is None:
            run.finished[rank.rank] = None
        step = run.step(self.now_s) if rank.ready else -1
        self.rank_gone(rank)
        launcher = self.launchers.get((job.id, rank.node))
        if launcher is None or launcher.session != rank.session or launcher.running != rank.generation:
            return
        launcher.report(
            RankExited(
                job=job.id,
                node=rank.node,
                session=rank.session,
                generation=rank.generation,
                rank=rank.rank,
                slot=rank.slot,
                exit_code=None if signal is not None else exit_code,
                signal=signal,
                error=error,
                step=step,
            )
        )

    # ---- the course of a generation

    def plan(self, job: SimJob, run: Run) -> None:
        """Schedule what happens to a generation that steps, until something else changes its course."""
        if not run.stepping:
            return
        epoch, now_s = run.epoch, self.now_s
        to_end_s = max(0, job.target_step - run.base) * run.step_time_s
        self._at(run, epoch, to_end_s, lambda: self._finish(run))
        if job.bug_step is not None and job.bug_step >= run.base:
            to_bug_s = (job.bug_step - run.base) * run.step_time_s
            self._at(run, epoch, to_bug_s, lambda: self._bug(job, run))
        for rank in run.ranks.values():
            mean_s = self.machines[rank.node].devices[rank.slot].flaky_s
            if mean_s:
                delay_s = self.rng.expovariate(1.0 / mean_s)
                self._at(run, epoch, delay_s, lambda rank=rank: self._device_fails(run, rank))  # type: ignore[misc]
        self._plan_commit(job, run, epoch)
        self.network.server.stepping(job, run, now_s)

    def _at(self, run: Run, epoch: int, delay_s: float, action: Callable[[], None]) -> None:
        self.timeline.after(delay_s, lambda: action() if run.epoch == epoch else None)

    def _plan_commit(self, job: SimJob, run: Run, epoch: int) -> None:
        step = (run.step(self.now_s) // job.commit_every + 1) * job.commit_every
        delay_s = run.since_s + (step - run.base) * run.step_time_s - self.now_s
        self._at(run, epoch, max(0.0, delay_s), lambda: self._commit(job, run, epoch, step))

    def _commit(self, job: SimJob, run: Run, epoch: int, step: int) -> None:
        launcher = self.launchers.get((job.id, run.nodes[0]))
        self._plan_commit(job, run, epoch)
        if launcher is None or not launcher.alive:
            return
        if job.disk_full:
            failed = CheckpointFailed(
                job=job.id, node=launcher.node, generation=run.generation, step=step, reason="no space left on device"
            )
            launcher.report(failed)
            return
        done = job.commit(run, step)
        launcher.report(
            CheckpointCommitted(
                job=job.id,
                generation=run.generation,
                step=step,
                key=done.key,
                world_size=run.world_size,
                duration_s=1.0,
            )
        )

    def _finish(self, run: Run) -> None:
        run.block("finished", self.now_s)
        for rank in run.ranks.values():
            self.rank_ended(rank, exit_code=0)

    def _bug(self, job: SimJob, run: Run) -> None:
        run.faulty = True
        culprit = next(r for r in run.ranks.values() if r.alive)
        error = ErrorRecord(kind="ValueError", message="index out of range", signature=f"bug:{job.bug_step}")
        self.rank_ended(culprit, error=error)

    def _device_fails(self, run: Run, rank: SimRank) -> None:
        if rank.alive:
            run.faulty = True
            serial = self.machines[rank.node].devices[rank.slot].serial
            self.rank_ended(rank, error=ErrorRecord(kind="DeviceFault", message=serial, signature=f"device:{serial}"))
