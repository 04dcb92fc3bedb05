"""The launcher's loop: registers, carries orders out, reports facts and vitals. Decides nothing.

Owns the coming together of the parts of this package. What it does without an order is only to end its own ranks: when
it learns of a newer generation, and when it has heard nothing for the lease while nothing moves (design §5).
"""

import asyncio
import logging
import os
import time
from collections.abc import Coroutine, Sequence

from keepstep.adapters.local import procfs, sweep
from keepstep.adapters.server_link import backoff
from keepstep.adapters.server_link.address import Address, parse_addresses
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.link import LinkSettings, ServerLink
from keepstep.core.facts import (
    Answered,
    Done,
    Failed,
    Fenced,
    JobStopRequested,
    JobSubmitted,
    Launched,
    NodeJoined,
    NodeLeft,
    Outcome,
    StacksTaken,
)
from keepstep.core.ids import slot_of
from keepstep.core.intents import (
    CollectStacks,
    EndJob,
    Fence,
    Inject,
    Intent,
    Launch,
    Order,
    Quarantine,
    Release,
    ResetDevice,
    RunGate,
    VerifyCheckpoint,
)
from keepstep.launcher import drill, fence, gate, stacks, virtual_device
from keepstep.launcher.nursery import Nursery
from keepstep.launcher.orders import Answers, Generations
from keepstep.launcher.output import Output
from keepstep.launcher.quarantine import Quarantined
from keepstep.launcher.ranks import LaunchFailed, Ranks
from keepstep.launcher.run_dir import RunDirectory
from keepstep.launcher.settings import Settings
from keepstep.launcher.snapshots import Snapshots
from keepstep.launcher.vitals import INTERVAL_S, Vitals
from keepstep.launcher.worth import worth
from keepstep.wire.messages import PROTOCOL, Command, Hello, JobEnded, Message, Superseded, Welcome

log = logging.getLogger("keepstep.launcher")

_END_GRACE_S = 5.0
_LAST_WORDS_S = 2.0
"""For the server to acknowledge what is still waiting, before we leave."""
_LAST_OUTPUT_S = 10.0
"""For what ranks have printed to reach its files, where the disk or this machine is busy; mostly it is there already."""
_LAST_WRITES_S = 30.0
"""For checkpoints that are being written when the job ends."""
_STOP_WITHOUT_SERVER_S = 5.0
_STORE_AHEAD_S = 1.0
_BIRTH_WAIT_S = 5.0
_ALONE_MAX_S = 600.0
"""A launcher that finds no server for so long gives up: without ranks, or with ranks of this node alone that stand still.

Ranks that depend on other nodes are ended after the lease, since the server may count on it (design §5). Nobody counts on
it where a job lives on one node, and an evaluation or a compilation may be silent for longer than a lease.
"""
_EXIT_INTERRUPTED = 130
_EXIT_NO_SERVER = 69


class Agent:
    """One life of a launcher. ``run`` returns the exit code."""

    def __init__(self, settings: Settings, credentials: Credentials) -> None:
        self._settings = settings
        self._run_dir = RunDirectory(settings.run_dir)
        self._servers = parse_addresses(settings.server)
        self._link = ServerLink(_link_settings(settings, credentials), self._find_servers, self)
        self._output = Output(None if settings.quiet else 1)
        self._ranks = Ranks(settings, self._output, self._link.report)
        self._nursery = Nursery(settings, self._ranks)
        self._snapshots = Snapshots(
            settings, self._run_dir.socket_path("snapshots.sock"), self._link.report, credentials
        )
        self._quarantined = Quarantined(settings.state_dir, settings.node, settings.agent_dir)
        self._answers = Answers()
        self._generations = Generations()
        self._vitals = Vitals(time.monotonic_ns())
        self._acting = asyncio.Lock()
        self._exit: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._stops = 0
        self._joined_once = False
        self._depends_on_others = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._pid_start = procfs.start_ticks(os.getpid()) or 0

    # ---- life

    async def run(self) -> int:
        """Raises ServerRefused where the server wants nothing of us."""
        self._nursery.start()
        for life in (self._link.run(), self._snapshots.run(), self._beats()):
            self._spawn(life)
        try:
            return await self._exit
        finally:
            await self._leave()

    async def _leave(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._ranks.silence()
        # Only where something else than an orderly end brought us here; an end without ranks costs nothing.
        await fence.end_ranks(self._ranks.running(), grace_s=0.0)
        await self._nursery.close()
        await self._snapshots.close(_LAST_WRITES_S)
        await asyncio.to_thread(self._output.finish, _LAST_OUTPUT_S)
        self._run_dir.remove()

    def stop(self, name: str) -> None:
        """A signal: the first asks for an end of the job, the second ends this node at once."""
        self._stops += 1
        if self._stops == 1:
            log.warning("%s: asking for the end of job %s; once more ends this node at once", name, self._settings.job)
            self._link.report(
                JobStopRequested(job=self._settings.job, by=f"{name} on {self._settings.node}", reason="interrupted")
            )
            asyncio.get_running_loop().call_later(_STOP_WITHOUT_SERVER_S, self._stop_if_alone)
        elif self._stops == 2:
            self._spawn(self._end(_EXIT_INTERRUPTED, f"{name} twice", grace_s=0.0))

    def _stop_if_alone(self) -> None:
        if not self._link.is_up:
            self._spawn(self._end(_EXIT_INTERRUPTED, "interrupted, and no server to ask", grace_s=_END_GRACE_S))

    async def _end(self, exit_code: int, message: str, *, grace_s: float, goodbye: bool = True) -> None:
        """Ends the ranks, says so, and lets ``run`` return."""
        if self._exit.done():
            return
        async with self._acting:
            self._generations.fenced = self._generations.newest
            try:
                await self._kill(self._generations.newest, grace_s)
            except sweep.Unkillable as error:
                log.error("%s", error)
        if goodbye:
            self._link.report(
                NodeLeft(
                    job=self._settings.job, node=self._settings.node, session=self._settings.session, reason=message
                )
            )
        if self._link.is_up:
            await self._link.drained(_LAST_WORDS_S)
        if not self._exit.done():
            log.info("leaving: %s", message or f"exit code {exit_code}")
            self._exit.set_result(exit_code)

    def _spawn(self, work: Coroutine[None, None, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: "asyncio.Task[None]") -> None:
        """An error that nobody expected is a bug of ours: the launcher ends with it, and its ranks with the launcher."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._exit.done():
            self._exit.set_exception(error)

    # ---- the connection (server_link.link.Listener)

    def connected(self, welcome: Welcome) -> None:
        log.info("connected to server %s at %s", welcome.server, self._settings.server)
        self._spawn(self._join())

    def lost(self, problem: str) -> None:
        if not self._exit.done():
            log.warning("%s; looked for at %s, the ranks go on", problem, self._settings.server)

    async def _find_servers(self) -> Sequence[Address]:
        return self._servers

    async def _join(self) -> None:
        """Says who we are and what runs here; again after every connection, since the server may be another by now."""
        if not self._joined_once:
            self._joined_once = True
            self._link.report(
                JobSubmitted(
                    job=self._settings.job,
                    spec=self._settings.job_spec(),
                    by=self._settings.node,
                    run=self._settings.run,
                )
            )
        store = await self._nursery.offer_store(self._generations.newest)
        inventory = await self._snapshots.inventory()
        self._link.forget(NodeJoined, but_oldest=True)
        running = self._ranks.generation if self._ranks.running() else 0
        settings = self._settings
        self._link.report(
            NodeJoined(
                job=settings.job, node=settings.node, session=settings.session, boot_id=procfs.boot_id(),
                devices=tuple(virtual_device.device(settings.node, slot) for slot in range(settings.nproc_per_node)),
                address=settings.address, pid=os.getpid(), pid_start=self._pid_start, running_generation=running,
                store=store, snapshots=self._snapshots.address, inventory=inventory,
                spare=settings.spare,
            )
        )  # fmt: skip

    def received(self, message: Message) -> None:
        match message:
            case Command(order=order):
                self._take(order)
            case Superseded(generation=generation):
                self._spawn(self._fence_myself(generation, f"generation {generation} exists elsewhere"))
            case JobEnded(job=job, exit_code=exit_code, message=text) if job == self._settings.job:
                self._spawn(self._end(exit_code, text, grace_s=_END_GRACE_S, goodbye=False))
            case _:
                log.warning("the server sent %s, which a launcher has no use for", type(message).__name__)

    # ---- orders

    def _take(self, order: Order) -> None:
        if self._answers.in_work(order):
            return
        earlier = self._answers.earlier(order)
        if earlier is not None:
            self._link.report(Answered(intent=order.number, outcome=earlier))
            return
        self._answers.began(order, self._spawn(self._carry_out(order)))

    async def _carry_out(self, order: Order) -> None:
        refusal = self._generations.refusal(order.intent, self._settings.session)
        try:
            outcome = refusal or await self._act(order.intent, order.number)
        except sweep.Unkillable as error:
            outcome = Failed(reason=str(error))
        except OSError as error:
            outcome = Failed(reason=f"{type(error).__name__}: {error}")
        self._answers.keep(order, outcome)
        self._link.report(Answered(intent=order.number, outcome=outcome))
        if isinstance(order.intent, EndJob) and isinstance(outcome, Done):
            await self._end(order.intent.exit_code, order.intent.message, grace_s=0.0, goodbye=False)

    async def _act(self, intent: Intent, number: int) -> Outcome:
        match intent:
            case Launch():
                return await self._launch(intent)
            case Fence(via="launcher"):
                return await self._fence(intent)
            case CollectStacks():
                return StacksTaken(stacks=await stacks.collect(self._ranks.running()))
            case VerifyCheckpoint(restore=restore, held=held):
                return await self._snapshots.verify(restore, held)
            case Quarantine(resource=resource, reason=reason):
                self._quarantined.hold(resource, reason)
            case Release(resource=resource):
                self._quarantined.lift(resource)
            case ResetDevice(resource=resource):
                if any(rank.plan.slot == slot_of(resource) for rank in self._ranks.running()):
                    return Failed(reason=f"{resource} is in use; fence its ranks first")
            case RunGate(resource=resource):
                self._link.report(await gate.run(self._settings, resource, number))
            case Inject(rank=None):
                # The answer goes first: nothing is left here to send it afterwards.
                asyncio.get_running_loop().call_later(drill.LAST_WORDS_S, drill.lose_node, self._ranks)
            case Inject():
                return drill.hit(self._ranks.running(), intent)
            case EndJob():
                async with self._acting:
                    self._generations.fenced = self._generations.newest
                    await self._kill(self._generations.newest, _END_GRACE_S)
            case _:
                return Failed(reason=f"a launcher does not carry out {type(intent).__name__}")
        return Done()

    async def _launch(self, launch: Launch) -> Outcome:
        refused = self._quarantined.refusal([place.slot for place in launch.ranks])
        if refused:
            return Failed(reason=refused)
        await self._nursery.ready()
        async with self._acting:
            # An order to fence may have overtaken us while the zygote got ready.
            superseded = self._generations.refusal(launch, self._settings.session)
            if superseded is not None:
                return superseded
            if self._ranks.running():
                return Failed(reason=f"generation {self._ranks.generation} still runs here; fence it first")
            self._ranks.forget()
            self._generations.launched = launch.generation
            self._depends_on_others = launch.group_world_size > 1
            await self._snapshots.begin(launch)
            outcome = await self._start(launch)
        self._nursery.keep_one_ahead()
        return outcome

    async def _start(self, launch: Launch) -> Launched | Failed:
        try:
            prepared = self._ranks.prepare(launch, self._snapshots.socket)
            try:
                for plan, fds in prepared:
                    await self._nursery.start_rank(plan, fds)
            finally:
                for fd in (fd for _, fds in prepared for fd in fds):
                    os.close(fd)
            launched = await self._ranks.births()
        except (LaunchFailed, OSError, ValueError) as error:
            await self._kill(launch.generation, 0.0)
            return Failed(reason=f"generation {launch.generation} was not started on {self._settings.node}: {error}")
        if launched.why_cold:
            log.info("generation %d: cold start, because %s", launch.generation, launched.why_cold)
        return launched

    async def _fence(self, order: Fence) -> Fenced:
        async with self._acting:
            self._generations.fenced = max(self._generations.fenced, order.generation)
            done = await self._kill(order.generation, order.grace_s)
            inventory = await self._snapshots.inventory()
            await self._nursery.retire_stores(order.generation)
            store = await self._nursery.offer_store(self._generations.newest)
        asyncio.get_running_loop().call_later(_STORE_AHEAD_S, self._nursery.keep_one_ahead)
        proof = "killed" if done.anything_ran else "nothing_ran"
        if not done.anything_ran and 0 < order.generation <= self._generations.self_fenced:
            proof = "self_fenced"
        return Fenced(generation=order.generation, proof=proof, killed=done.killed, inventory=inventory, store=store)  # type: ignore[arg-type]

    async def _kill(self, generation: int, grace_s: float) -> fence.Fenced:
        if not await self._ranks.all_born(_BIRTH_WAIT_S):
            log.error("the zygote does not start ranks that it was told to start; it is replaced")
            self._nursery.kill()
        return await fence.fence(self._ranks, self._settings.token, generation, grace_s)

    async def _fence_myself(self, generation: int, why: str) -> None:
        async with self._acting:
            if not self._ranks.running() or self._ranks.generation > generation:
                return
            log.error("ending the ranks of generation %d: %s", self._ranks.generation, why)
            self._generations.fenced = max(self._generations.fenced, self._ranks.generation)
            try:
                await self._kill(self._ranks.generation, 0.0)
            except sweep.Unkillable as error:
                log.error("%s", error)
                return
            self._generations.self_fenced = self._generations.fenced

    # ---- vitals

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            beat = self._vitals.beat(self._ranks.generation, self._ranks.watched(), time.monotonic_ns())
            self._link.say(beat)
            silent_s, lease_s = self._link.silent_s, self._settings.lease_s
            if silent_s < lease_s:
                continue
            if self._ranks.running():
                limit_s = lease_s if self._depends_on_others else max(lease_s, _ALONE_MAX_S)
                if silent_s >= limit_s and self._vitals.stalled_s() >= limit_s:
                    await self._fence_myself(
                        self._ranks.generation, f"no server for {silent_s:.1f} s, and nothing moves"
                    )
            elif silent_s > _ALONE_MAX_S:
                await self._end(
                    _EXIT_NO_SERVER, f"no server at {self._settings.server} for {silent_s:.0f} s", grace_s=0.0
                )


def _link_settings(settings: Settings, credentials: Credentials) -> LinkSettings:
    hello = Hello(
        protocol=PROTOCOL, role="launcher", job=settings.job, node=settings.node, session=settings.session,
        run=settings.run,
    )  # fmt: skip
    return LinkSettings(
        hello=hello, credentials=credentials, backoff=backoff.LAUNCHER, worth=worth, on_refusal="raise at first",
        lease_s=settings.lease_s,
    )  # fmt: skip
