"""The front of a job on one machine: its launchers as children, its server as a neighbour. Owns their processes.

It decides nothing about the job: it says what it saw (a launcher process is gone) and what a person wants (Ctrl-C), and
it waits for the server to say how the job ended.
"""

import asyncio
import contextlib
import getpass
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keepstep.adapters.local import LocalHost, procfs
from keepstep.adapters.server_link.address import Address, parse_addresses
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.errors import NoLeader, ServerGone
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.cli.embedded import EmbeddedServer, ServerWillNotStart
from keepstep.cli.link import FrontLink
from keepstep.core.facts import JobStopRequested, Witnessed
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.server.state_dir import StateDir
from keepstep.server.views import IncidentLine, Incidents, Jobs, Launchers, LauncherView
from keepstep.wire.messages import JobEnded

LEAVE_WAIT_S = 20.0
"""How long launchers have to leave once the job has ended; they give their ranks 5 s after SIGTERM."""
ORPHAN_WAIT_S = 15.0
"""How long the server has to end a job whose launchers are all gone."""
KILL_SWEEP_WAIT_S = 2.0
REACH_TRIES = 3
KILLED_EXIT_CODE = 130


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What the front is to run."""

    job: JobId
    run: str
    """Names this very call."""
    state: StateDir
    nodes: tuple[NodeId, ...]
    """One launcher each."""
    spares: tuple[NodeId, ...]
    """One launcher each, which stands by."""
    launcher_argv: tuple[str, ...]
    """Arguments of every launcher, without the server, the node and the script."""
    script_argv: tuple[str, ...]


@dataclass
class Child:
    """One launcher."""

    node: NodeId
    process: asyncio.subprocess.Process
    watcher: "asyncio.Task[None] | None" = None
    over: bool = False


@dataclass
class Front:
    """Runs one job; ``say`` takes lines for the person at the terminal."""

    plan: RunPlan
    say: Callable[[str], None]
    children: list[Child] = field(default_factory=list)
    _interrupts: int = 0
    _wanted: str = ""
    _killed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> int:
        """The job's exit code. Raises ServerWillNotStart (there is no server to begin with), ServerRefused, ValueError."""
        self._server = EmbeddedServer(self.plan.state)
        address = await asyncio.to_thread(reach, self._server, self.plan.state, self.plan.job)
        credentials = Credentials.of(str(self.plan.state.path), {})
        self._link = FrontLink(self.plan.job, self.plan.run, credentials, self._find_servers)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._interrupted, signal.Signals(number))
        link = asyncio.create_task(self._link.run())
        try:
            for node in self.plan.nodes + self.plan.spares:
                await self._start(node, address)
            ended = await self._wait_for_end(link)
            if ended is None:
                await self._kill_all()
                return KILLED_EXIT_CODE
            await self._see_launchers_off()
            await self._tell(ended)
            return ended.exit_code
        finally:
            self._kill_launchers()
            link.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await link
            await self._reap()
            await asyncio.to_thread(self._server.see_off)
            self._server.reap()

    # ---- the server

    async def _find_servers(self) -> Sequence[Address]:
        """A broken connection is first taken for a passing thing; a server that is gone is started again."""
        self._server.reap()
        try:
            return parse_addresses(await asyncio.to_thread(self._server.ensure))
        except ServerWillNotStart as error:
            self.say(f"the server is gone and does not come back; the job trains on without it. {error}")
            raise ConnectionError(str(error)) from error

    # ---- launchers

    async def _start(self, node: NodeId, address: str) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "keepstep.launcher",
            "--server",
            address,
            "--job",
            self.plan.job,
            "--node",
            node,
            "--state-dir",
            str(self.plan.state.path),
            "--die-with-parent",
            str(os.getpid()),
            "--run",
            self.plan.run,
            *(("--spare",) if node in self.plan.spares else ()),
            *self.plan.launcher_argv,
            "--",
            *self.plan.script_argv,
            stdin=asyncio.subprocess.DEVNULL,
            process_group=0,  # Ctrl-C reaches the front only, which asks for a clean end first
        )
        child = Child(node, process)
        child.watcher = asyncio.create_task(self._watch(child))
        self.children.append(child)

    async def _watch(self, child: Child) -> None:
        code = await child.process.wait()
        if not self._link.ended.done() and not self._killed.is_set():
            how = f"signal {-code}" if code < 0 else f"code {code}"
            self.say(f"the launcher of {child.node} ended ({how})")
            await self._witness(child, how)
        child.over = True
        if all(other.over for other in self.children) and len(self.children) == len(self.plan.nodes + self.plan.spares):
            await self._orphaned()

    async def _witness(self, child: Child, how: str) -> None:
        """End what it left, then say that it is gone: the server need not wait for its silence."""
        launcher = await self._launcher_of(child)
        if launcher is None:
            return
        node, session = child.node, Session(launcher.session)
        try:
            swept = await asyncio.to_thread(LocalHost().sweep, self.plan.job, node, session)
        except (OSError, RuntimeError) as error:
            self.say(f"cannot end what the launcher of {node} left: {error}")
            return
        self._link.report(
            Witnessed(
                job=self.plan.job,
                node=node,
                session=session,
                witness="host",
                verdict="process_gone",
                detail=f"launcher pid {child.process.pid} ended with {how}; {swept} processes of it were swept",
            )
        )

    async def _launcher_of(self, child: Child) -> LauncherView | None:
        """As the server knows it; None where it never joined. Waits for a server that is just coming back."""
        while not self._link.ended.done():
            known = await self._link.query("launchers", Launchers, job=self.plan.job)
            if known is None:
                await asyncio.sleep(0.05)
                continue
            found = [view for view in known.launchers if view.node == child.node]
            return found[0] if found and found[0].pid == child.process.pid else None
        return None

    async def _orphaned(self) -> None:
        """No launcher of this front is left and none will come: the job cannot go on, so ask for its end."""
        if self._link.ended.done():
            return
        self._stop("every launcher of the job has ended")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ORPHAN_WAIT_S):
                await asyncio.shield(self._link.ended)
        if not self._link.ended.done():
            message = (
                "every launcher of the job has ended and the server did not end it; see the launchers' output above"
            )
            self._link.ended.set_result(JobEnded(job=self.plan.job, exit_code=1, message=message))

    # ---- the end

    async def _wait_for_end(self, link: "asyncio.Task[None]") -> JobEnded | None:
        """None where a person would not wait for it."""
        killed = asyncio.create_task(self._killed.wait())
        try:
            waiting: set[asyncio.Future[Any]] = {self._link.ended, killed, link}
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if link.done():
                link.result()  # it ends only by an error
            return self._link.ended.result() if self._link.ended.done() else None
        finally:
            killed.cancel()

    def _interrupted(self, number: signal.Signals) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self.say(f"{number.name}: ending the job; once more kills it")
            self._stop(number.name)
        else:
            self._killed.set()

    def _stop(self, reason: str) -> None:
        self._link.report(JobStopRequested(job=self.plan.job, by=getpass.getuser(), reason=reason))

    async def _see_launchers_off(self) -> None:
        """They were told to end by the server; what stays after LEAVE_WAIT_S is killed."""
        watchers = [child.watcher for child in self.children if child.watcher is not None]
        killed = asyncio.create_task(self._killed.wait())
        everyone = asyncio.gather(*watchers)
        waiting: set[asyncio.Future[Any]] = {killed, everyone}
        await asyncio.wait(waiting, timeout=LEAVE_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if not everyone.done():
            self.say("launchers do not leave; killing them")

    async def _kill_all(self) -> None:
        """The person would not wait: kill the launchers, and what their ranks left (DataLoader workers and such)."""
        self._kill_launchers()
        for child in self.children:
            await child.process.wait()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_SWEEP_WAIT_S):
                known = await self._link.query("launchers", Launchers, job=self.plan.job)
            for view in known.launchers if known is not None else ():
                with contextlib.suppress(OSError, RuntimeError):
                    await asyncio.to_thread(LocalHost().sweep, self.plan.job, NodeId(view.node), Session(view.session))

    def _kill_launchers(self) -> None:
        """Their ranks die with them (PR_SET_PDEATHSIG)."""
        for child in self.children:
            if child.process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    child.process.kill()

    async def _reap(self) -> None:
        for child in self.children:
            await child.process.wait()
            if child.watcher is not None:
                child.watcher.cancel()
        await asyncio.gather(*(c.watcher for c in self.children if c.watcher is not None), return_exceptions=True)

    async def _tell(self, ended: JobEnded) -> None:
        known = await self._link.query("incidents", Incidents, job=self.plan.job)
        for line in reversed(known.incidents if known is not None else ()):
            self.say(_in_a_line(line))
        self.say(f"job {self.plan.job}: {ended.message or 'ended'} (exit code {ended.exit_code})")


def _in_a_line(line: IncidentLine) -> str:
    took = f"{line.downtime_s:.2f} s" if line.downtime_s is not None else "open"
    lost = f"{line.lost_steps} steps lost" if line.lost_steps is not None else "not closed"
    cause = line.summary or line.cause or "undiagnosed"
    return f"{line.id}: {cause} — {line.state}, {lost}, {took}; keepstep incident show {line.id}"


def reach(server: EmbeddedServer, state: StateDir, job: JobId) -> str:
    """The address of a server that has no such job yet. One that answered may have been on its way out, seen off by a run that
    has just ended: then another one is started. Raises what EmbeddedServer and refuse_taken_name raise."""
    tries = 1
    while True:
        address = server.ensure()
        try:
            refuse_taken_name(address, state, job)
        except (ServerGone, NoLeader):
            if tries == REACH_TRIES:
                raise
            tries += 1
        else:
            return address


def refuse_taken_name(address: str, state: StateDir, job: JobId) -> None:
    """Raises ValueError where the name belongs to a job whose launchers are there. An ended job may be run again."""
    identity_dir = Credentials.of(str(state.path), {}).identity_dir
    with ToolClient(address, state.token(), identity_dir=identity_dir) as server:
        known = [view for view in server.query("jobs", Jobs).jobs if view.id == job]
        if not known:
            return
        if known[0].finished_s is None and any(map(_may_live, server.query("launchers", Launchers, job=job).launchers)):
            raise ValueError(f"job {job} already runs; choose another --job, or end it with `keepstep stop {job}`")


def _may_live(view: LauncherView) -> bool:
    """A server that has just replayed its journal takes every launcher for reachable: of this boot we can tell better."""
    if view.boot_id == procfs.boot_id():
        return procfs.is_alive(view.pid, view.pid_start)
    return view.reachable


def default_node_names(job: JobId, count: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(f"{job}-n{index}") for index in range(count))


def script_problem(script_argv: tuple[str, ...]) -> str:
    """What is wrong with the script, in words for the person who typed it; empty where nothing is."""
    if not script_argv:
        return "no script given: keepstep run [options] train.py [its arguments]"
    if script_argv[0] == "-m":
        return "" if len(script_argv) > 1 else "-m needs the name of a module"
    path = Path(script_argv[0])
    if not path.exists():
        return f"there is no script {script_argv[0]} (looked in {Path.cwd()}); options of keepstep go before it"
    return "" if path.is_file() else f"{script_argv[0]} is not a file"
