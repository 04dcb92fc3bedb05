"""A browser that is driven from a thread of its own, and looks like Playwright's synchronous API.

That API itself leaves its event loop running in the thread of the test: whatever else runs there and uses asyncio would fail.
"""

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

DEADLINE_S = 150.0
"""Above the patience of the browser, which says more about what it waited for."""
PLAIN = (str, int, float, bool, bytes, dict, type(None))
T = TypeVar("T")


class Loop:
    """An event loop in a thread: servers and the browser live there while a test waits."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def do(self, work: Awaitable[T]) -> T:
        async def done() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(DEADLINE_S)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Driven:
    """An object of Playwright's asynchronous API: what it would have awaited is waited for, what it gives is driven too."""

    def __init__(self, thing: Any, loop: Loop) -> None:
        self._thing = thing
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        return self._called(found) if callable(found) else self._driven(found)

    def _called(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            async def act() -> Any:
                result = method(*(x._thing if isinstance(x, Driven) else x for x in arguments), **options)
                return await result if inspect.isawaitable(result) else result

            return self._driven(self._loop.do(act()))

        return call

    def _driven(self, thing: Any) -> Any:
        if isinstance(thing, list):
            return [self._driven(each) for each in thing]
        return thing if isinstance(thing, PLAIN) else Driven(thing, self._loop)
