"""A real HTTP server on a loopback port, for tests: the app on a real site, served by uvicorn in a thread of its own."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import httpx
from tests.web.site import OWNER_TOKEN, Rig

from keepstep.core.access import Role
from keepstep.web.app import make_app
from keepstep.web.options import WebOptions
from keepstep.web.serving import serve

Result = TypeVar("Result")
WAIT_S = 120.0
"""For whatever the server does."""
PATIENT = WebOptions(owner_token=OWNER_TOKEN, patience_s=600.0)
"""The machine may stand still between the two halves of a request of ours."""


class Served:
    """``rig`` makes the site; it lives in this object's event loop: touch it through ``do`` only."""

    def __init__(
        self, rig: Callable[[], AbstractAsyncContextManager[Rig]], options: WebOptions | None = None,
        extra_routes: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        self._make = rig
        self._options = options or PATIENT
        self._extra = extra_routes
        self.loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="served")
        self._thread.start()
        assert self._ready.wait(WAIT_S), "the server does not come up"
        self.http = self.client(OWNER_TOKEN)

    def client(self, token: str = "", **headers: str) -> httpx.Client:
        """To be closed by whoever asks for it."""
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return httpx.Client(base_url=self.url, headers=headers, timeout=WAIT_S)

    def do(self, act: Callable[[Rig], Awaitable[Result]]) -> Result:
        """Something in the server's event loop."""

        async def call() -> Result:
            return await act(self.rig)

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(WAIT_S)

    def token(self, role: Role, *tenants: str, name: str = "") -> str:
        return self.do(lambda rig: rig.token(name or role.value, role, tenants))

    def entries(self) -> int:
        return self.rig.journal.last()

    def close(self) -> None:
        self.http.close()
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), "the server does not end"

    def _run(self) -> None:
        with asyncio.Runner(
            loop_factory=lambda: self.loop
        ) as runner:  # leaves no task behind, which would end anywhere later
            runner.run(self._live())

    async def _live(self) -> None:
        self._stop = asyncio.Event()
        async with self._make() as self.rig:
            self.app = make_app(self.rig.site, self._options, self._extra)
            self.listening = socket.create_server(("127.0.0.1", 0), backlog=256)
            self.port = self.listening.getsockname()[1]
            self.url = f"http://127.0.0.1:{self.port}"
            serving = asyncio.create_task(serve(self.app, [self.listening]))
            self._ready.set()
            await self._stop.wait()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
            self.listening.close()
