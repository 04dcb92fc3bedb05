"""The snapshot server of this node, as the launcher's child. Owns its process, and the translation into facts.

It outlives the ranks and dies with the launcher. If it ends by itself the memory tier is empty from then on, a new one
is started, and training goes on: losing it costs steps at the next fault, not the run. Must not choose what to restore.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import sys
from collections.abc import Callable

from keepstep.adapters.server_link.credentials import Credentials
from keepstep.checkpoint.errors import SnapshotRefused, StateInvalid, Unreadable
from keepstep.checkpoint.snapshot.control import Event, SnapshotControl
from keepstep.checkpoint.snapshot.messages import Committed, Notice, Stock
from keepstep.checkpoint.snapshot.policy import SnapshotPolicy
from keepstep.core.facts import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointRejected,
    CheckpointVerified,
    DiskOffer,
    Fact,
    Failed,
    Inventory,
    Outcome,
    RamOffer,
)
from keepstep.core.intents import Launch, Restore
from keepstep.launcher.control import NO_GENERATION
from keepstep.launcher.settings import Settings
from keepstep.wire import environment

log = logging.getLogger("keepstep.launcher")

_SECRET_VARIABLE = "KEEPSTEP_SNAPSHOT_SECRET"
_READY_WAIT_S = 30.0
_TOKEN_POLL_S = 0.1
_RESTART_PAUSE_S = 0.2


class Snapshots:
    """``run`` keeps one server up; the other methods wait for it, and never raise for one that is gone."""

    def __init__(
        self, settings: Settings, socket: str, report: Callable[[Fact], None], credentials: Credentials
    ) -> None:
        """``socket``: path at which the server shall listen for the ranks."""
        self._settings = settings
        self.socket = socket
        self._report = report
        self._credentials = credentials
        self._control: SnapshotControl | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._up = asyncio.Event()
        self._last_launch: Launch | None = None

    @property
    def address(self) -> str:
        """host:port for peers; empty while no server is up."""
        return self._control.address if self._control is not None else ""

    # ---- the process

    async def run(self) -> None:
        """Starts the server, and a new one whenever it ends."""
        while True:
            try:
                await self._start()
            except (OSError, TimeoutError, SnapshotRefused) as error:
                log.error("no snapshot server: %s; trying again", error)
            else:
                assert self._process is not None
                await self._process.wait()
                log.error("the snapshot server ended with %s; what it held in memory is lost", self._process.returncode)
            self._up.clear()
            self._control = None
            await self._end_process()
            await asyncio.sleep(_RESTART_PAUSE_S)

    async def _start(self) -> None:
        secret = await self._secret()
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        own = {environment.TOKEN: self._settings.token, environment.GENERATION: NO_GENERATION, _SECRET_VARIABLE: secret}
        more = [word for tier in self._settings.checkpoint_copies for word in ("--copies", tier)]
        more += ["--restore-bytes-s", str(self._settings.restore_bytes_s), "--priority", self._settings.priority]
        more += ["--compress"] if self._settings.checkpoint_compress else []
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "keepstep.checkpoint.snapshot", "--socket", self.socket, "--job", self._settings.job,
            "--directory", self._settings.checkpoint_dir, "--keys", self._settings.checkpoint_keys,
            "--keys-command", self._settings.checkpoint_keys_command, "--listen", self._settings.address, "--parent",
            str(os.getpid()), *more, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, process_group=0,
            env={**os.environ, **own},
        )  # fmt: skip
        assert self._process.stdout is not None
        async with asyncio.timeout(_READY_WAIT_S):
            ready = await self._process.stdout.readline()
        if not ready:
            raise ConnectionError("it ended before it was ready")
        self._control = await SnapshotControl.connect(self.socket, self._settings.job, self._heard)
        if self._last_launch is not None:
            await self._begin(self._control, self._last_launch)
        self._up.set()

    async def _secret(self) -> str:
        """Shared by the snapshot servers of one job; known to whoever knows what Credentials.secret_of_peers gives."""
        while True:
            try:
                known = self._credentials.secret_of_peers()
            except FileNotFoundError:
                await asyncio.sleep(_TOKEN_POLL_S)
                continue
            if known is None:
                log.warning("no snapshots go to other nodes: set %s, the same on each of them", environment.PEER_SECRET)
            key = hashlib.sha256((known or secrets.token_hex(32)).encode()).digest()
            return hashlib.blake2b(self._settings.job.encode(), key=key).hexdigest()

    async def _end_process(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        self._process = None

    async def close(self, wait_s: float) -> None:
        """Ends the server once what is queued for the disk is written, at most after ``wait_s``."""
        if self._control is not None:
            try:
                async with asyncio.timeout(wait_s):
                    await self._control.quit()
            except TimeoutError:
                log.warning("the snapshot server still writes after %.0f s; it is ended", wait_s)
                await self._control.close()
            self._control = None
        await self._end_process()

    def _heard(self, event: Event) -> None:
        job = self._settings.job
        if isinstance(event, Notice):
            log.warning("snapshot server: %s", event.reason)
            return
        if isinstance(event, Committed):
            fact: Fact = CheckpointCommitted(
                job=job, generation=event.generation, step=event.step, key=event.key, world_size=event.world_size,
                duration_s=event.duration_s, size_bytes=event.size_bytes,
            )  # fmt: skip
        else:
            fact = CheckpointFailed(
                job=job, node=self._settings.node, generation=event.generation, step=event.step, reason=event.reason
            )
        self._report(fact)

    # ---- what the agent asks

    async def begin(self, launch: Launch) -> None:
        """A generation begins on this node; what it restores from is kept until it no longer needs it."""
        self._last_launch = launch
        control = self._control
        if control is None:
            log.warning("generation %d begins without a snapshot server", launch.generation)
            return
        try:
            await self._begin(control, launch)
        except ConnectionError as error:
            log.warning("generation %d begins without a snapshot server: %s", launch.generation, error)

    async def _begin(self, control: SnapshotControl, launch: Launch) -> None:
        restore = launch.restore
        if restore is not None and restore.tier == "ram":
            try:
                await control.hold(restore.step, restore.generation)
            except StateInvalid as error:
                # This node holds nothing of it; its ranks fetch from the peers that do.
                log.info("step %d is not held here: %s", restore.step, error)
        source = f"step {restore.step} of generation {restore.generation} ({restore.tier})" if restore else "nothing"
        await control.begin(
            launch.generation, launch.world_size, launch.peers, source,
            policy=SnapshotPolicy(spill_directory=self._settings.run_dir),
        )  # fmt: skip

    async def inventory(self) -> Inventory:
        """What this node could restore from; empty where there is no server."""
        try:
            async with asyncio.timeout(_READY_WAIT_S):
                await self._up.wait()
            control = self._control
            return _inventory(await control.inventory()) if control is not None else Inventory()
        except (ConnectionError, TimeoutError, StateInvalid) as error:
            log.warning("no inventory: %s", error)
            return Inventory()

    async def verify(self, restore: Restore, held: tuple[str, ...]) -> Outcome:
        """Reads what this node holds of a state, and compares digests."""
        control = self._control
        if control is None:
            return Failed(reason="no snapshot server is up on this node")
        try:
            if restore.tier == "ram":
                await control.verify_ram(restore.step, held)
            else:
                await control.verify_disk(restore.key)
        except StateInvalid as error:
            return CheckpointRejected(key=restore.key, reason=str(error))
        except (ConnectionError, Unreadable) as error:
            return Failed(reason=str(error))
        return CheckpointVerified(key=restore.key)


def _inventory(stock: Stock) -> Inventory:
    return Inventory(
        ram=tuple(
            RamOffer(
                step=one.step, generation=one.generation, world_size=one.world_size, parts=one.parts, held=one.held
            )
            for one in stock.ram
        ),
        disk=tuple(
            DiskOffer(step=one.step, generation=one.generation, world_size=one.world_size, key=one.key)
            for one in stock.disk
        ),
    )
