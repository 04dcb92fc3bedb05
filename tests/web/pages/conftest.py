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
from tests.web.served import PATIENT
from tests.web.site import OWNER_TOKEN, Rig, big_site, running_site, story

from keepstep.core.access import Role
from keepstep.web.app import make_app
from keepstep.web.pages import routes
from keepstep.web.serving import serve

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
HISTORY = 20_000
PATIENCE_S = 100.0
"""For what a page is to show."""
RESETS_MAX = 10
"""A connection that is kept may have been closed by the server in the moment in which it is used again."""
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
        # Holds the port while nobody listens there: else somebody beside us may be given it before it is listened to again.
        self._place = socket.socket()
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port = self._place.getsockname()[1]
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", self.port))
        app = make_app(self._rig.site, PATIENT, routes())
        self._task = asyncio.create_task(serve(app, [self._socket]))

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()

    async def end(self) -> None:
        await self.stop()
        self._place.close()


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
        stack.push_async_callback(listener.end)
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
    started = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(ARGUMENTS), timeout=PATIENCE_S * 1000)
    yield started
    started.close()
    playwright.stop()
    loop.end()


@pytest.fixture(scope="session")
def windows(browser: Any) -> Callable[..., Any]:
    """Makes windows that nobody is signed in at, wherever in the world the machine stands."""

    def open_one(**options: Any) -> Any:
        usual = {"viewport": {"width": 1280, "height": 900}, "locale": "en-US", "timezone_id": "UTC"}
        context = browser.new_context(**(usual | options))
        context.set_default_timeout(PATIENCE_S * 1000)
        return context

    return open_one


def sign_in(context: Any, url: str, token: str = OWNER_TOKEN) -> None:
    response = context.request.post(
        f"{url}/login", form={"token": token, "next": "/"}, headers={"Origin": url}, timeout=PATIENCE_S * 1000,
        max_retries=RESETS_MAX,
    )  # fmt: skip
    assert response.ok, response.text()


def width_on_a_phone(page: Any) -> int:
    """How wide the page must be scrolled, once the window is that of a phone: 390 pixels."""
    page.set_viewport_size({"width": 390, "height": 844})
    return int(
        page.evaluate(
            """async () => {
              while (document.documentElement.clientWidth > 390) await new Promise(requestAnimationFrame);
              return document.documentElement.scrollWidth;
            }"""
        )
    )


@pytest.fixture
def visit(windows: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """A page of a site, signed in with a token. What the browser complains about fails the test."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def go(served: Served, path: str = "/", token: str = OWNER_TOKEN, **options: Any) -> Any:
        strict = options.pop("strict", True)
        context = windows(**options)
        contexts.append(context)
        page = context.new_page()
        if strict:
            page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        sign_in(context, served.url, token)
        page.goto(served.url + path)
        return page

    yield go
    for context in contexts:
        context.close()
    assert complaints == []
