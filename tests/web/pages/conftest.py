"""Sites that are served as in production, and one browser for all tests, each in the event loop of a thread of its own."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.web.pages.driven import Driven, Loop
from tests.web.site import OWNER_TOKEN, Rig, big_site, running_site, story

from keepstep.core.access import Role
from keepstep.web.app import make_app
from keepstep.web.options import WebOptions
from keepstep.web.pages import routes
from keepstep.web.serving import serve

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
HISTORY = 20_000
PATIENCE_S = 60.0
"""For what a page is to show."""
T = TypeVar("T")


@dataclass
class Served:
    rig: Rig
    url: str
    loop: Loop
    listener: "Listener"

    def do(self, work: Awaitable[T]) -> T:
        return self.loop.do(work)

    def token(self, name: str, role: Role, tenants: tuple[str, ...] = ()) -> str:
        return self.do(self.rig.token(name, role, tenants))


class Listener:
    """An app on a free port of the loopback; it can be taken away and come back at the same address."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.port = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", self.port))
        self.port = self._socket.getsockname()[1]
        app = make_app(self._rig.site, WebOptions(owner_token=OWNER_TOKEN), routes())
        self._task = asyncio.create_task(serve(app, [self._socket]))
        await asyncio.sleep(0.05)

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.end()


def _serve(loop: Loop, site: Callable[[], Any]) -> Iterator[Served]:
    stack = AsyncExitStack()

    async def start() -> tuple[Rig, Listener]:
        rig = await stack.enter_async_context(site())
        listener = Listener(rig)
        await listener.start()
        stack.push_async_callback(listener.stop)
        return rig, listener

    rig, listener = loop.do(start())
    served = Served(rig, f"http://127.0.0.1:{listener.port}", loop, listener)
    yield served
    loop.do(stack.aclose())


@pytest.fixture
def served(loop: Loop) -> Iterator[Served]:
    """A fresh small site: a test may change it."""
    yield from _serve(loop, lambda: running_site(story()))


@pytest.fixture(scope="session")
def small(loop: Loop) -> Iterator[Served]:
    """A small site that nobody changes."""
    yield from _serve(loop, lambda: running_site(story()))


@pytest.fixture(scope="session")
def big(loop: Loop) -> Iterator[Served]:
    """10,000 nodes, and a long history. The benchmark of the server has a hundred thousand incidents."""
    yield from _serve(loop, lambda: big_site(incidents=HISTORY))


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.async_api")
    if not CHROMIUM.exists():
        pytest.skip(f"there is no browser at {CHROMIUM}")
    loop = Loop()
    playwright = Driven(loop.do(api.async_playwright().start()), loop)
    started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS))
    yield started
    started.close()
    playwright.stop()
    loop.end()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """A page of a site, signed in with a token. What the browser complains about fails the test."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def go(served: Served, path: str = "/", token: str = OWNER_TOKEN, **options: Any) -> Any:
        strict = options.pop("strict", True)
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        if strict:
            page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        response = context.request.post(
            f"{served.url}/login", form={"token": token, "next": "/"}, headers={"Origin": served.url}
        )
        assert response.ok, response.text()
        page.goto(served.url + path)
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []
