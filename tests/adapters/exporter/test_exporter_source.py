"""The exporter as a source, over a server of this test's own."""

import asyncio
import contextlib

import pytest

from keepstep.adapters.exporter.source import ExporterSource
from keepstep.core.observation import Observation, Same

DEADLINE_S = 90.0
LABELS = 'gpu="1",UUID="GPU-1",pci_bus_id="00000000:1B:00.0",Hostname="other-name"'


class Seen:
    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.names: list[Same] = []
        self.covered: list[tuple[str, str]] = []
        self.levels: dict[tuple[str, str], float] = {}

    def observe(self, observation: Observation) -> None:
        self.observations.append(observation)

    def level(self, part: str, counter: str, value: float) -> None:
        self.levels[(part, counter)] = value

    def same(self, same: Same) -> None:
        self.names.append(same)

    def coverage(self, state: str, detail: str = "") -> None:
        self.covered.append((state, detail))


class Page:
    """Serves one page, which may change."""

    def __init__(self) -> None:
        self.body = f"DCGM_FI_DEV_GPU_TEMP{{{LABELS}}} 44\n"
        self.status = "200 OK"

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.0 {self.status}\r\n\r\n{self.body}".encode())
        await writer.drain()
        writer.close()


async def _until(true: object) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not true():  # type: ignore[operator]
            await asyncio.sleep(0.02)


def test_what_the_exporter_says_becomes_levels_names_and_signals_of_this_node() -> None:
    async def run() -> None:
        page, seen = Page(), Seen()
        server = await asyncio.start_server(page.answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        source = ExporterSource(url=f"http://127.0.0.1:{port}/metrics", interval_s=0.05, deadline_s=DEADLINE_S)
        task = asyncio.create_task(source.run(seen))
        await _until(lambda: seen.covered)
        assert seen.levels[("gpu/0000:1b:00", "gpu.temperature")] == 44.0
        assert seen.names == [Same(parts=("gpu/0000:1b:00", "gpu/GPU-1", "gpu/1"))]
        page.body += f"DCGM_FI_DEV_ROW_REMAP_FAILURE{{{LABELS}}} 1\n"
        await _until(lambda: seen.observations)
        one = seen.observations[0]
        assert (one.signal, one.node, one.part, one.source) == ("gpu.remap.failed", "", "gpu/0000:1b:00", "exporter")
        page.status = "503 Service Unavailable"
        await _until(lambda: seen.covered[-1][0] == "failing")
        assert len(seen.observations) == 1
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        server.close()
        # A page that is under way ends with its connection; cut off with the loop it would leave its socket open.
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)

    asyncio.run(run())


def test_without_an_exporter_there_is_nothing_to_see() -> None:
    async def run() -> None:
        seen = Seen()
        task = asyncio.create_task(ExporterSource(url="http://127.0.0.1:1/metrics").run(seen))
        await _until(lambda: seen.covered)
        assert seen.covered[0][0] == "absent"
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


def test_an_address_that_cannot_be_asked_is_refused() -> None:
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        ExporterSource(url="https://example")
