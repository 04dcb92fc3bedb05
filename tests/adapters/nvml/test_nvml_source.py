"""The source over the real binding: only the driver's library is a stand-in, compiled here."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from keepstep.adapters.devices.source import DeviceSource
from keepstep.adapters.nvml.source import NvmlSource
from keepstep.core.observation import Observation, Same

COMPILER = shutil.which("cc") or shutil.which("gcc")
DEADLINE_S = 90.0

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="no C compiler to build the stand-in library"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only"),
]
pytest.importorskip("pynvml")


class Seen:
    """An outlet that keeps everything and wakes whoever waits."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.levels: dict[tuple[str, str], float] = {}
        self.names: list[Same] = []
        self.covered: list[tuple[str, str]] = []
        self._changed = asyncio.Event()

    def observe(self, observation: Observation) -> None:
        self.observations.append(observation)
        self._changed.set()

    def level(self, part: str, counter: str, value: float) -> None:
        self.levels[(part, counter)] = value

    def same(self, same: Same) -> None:
        self.names.append(same)

    def coverage(self, state: str, detail: str = "") -> None:
        self.covered.append((state, detail))
        self._changed.set()

    async def until(self, true: Callable[[], object]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not true():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.1)

    def signals(self) -> set[tuple[str, str]]:
        return {(one.signal, one.part) for one in self.observations}

    def swept(self) -> int:
        return sum(state == "seen" for state, _ in self.covered)


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("standin")
    source = Path(__file__).parent / "standin.c"
    assert COMPILER is not None
    command = [COMPILER, "-shared", "-fPIC", "-O1", "-o", str(folder / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(command, check=True, timeout=150)
    return folder


class Driver:
    """What the stand-in answers. Written anew and put in place at once: it is read in the middle of calls."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = {"count": "4"}
        self._write()

    def set(self, **values: object) -> None:
        self._state |= {key.replace("__", "."): str(value) for key, value in values.items()}
        self._write()

    def gpu(self, number: int, **values: object) -> None:
        self._state |= {f"{number}.{key}": str(value) for key, value in values.items()}
        self._write()

    def _write(self) -> None:
        new = self._path.with_suffix(".new")
        new.write_text("".join(f"{key} {value}\n" for key, value in self._state.items()))
        new.replace(self._path)


@pytest.fixture
def driver(library: Path, tmp_path: Path) -> Driver:
    return Driver(tmp_path / "state")


class _Told(NvmlSource):
    """The same source with the stand-in's folder in the child's environment."""

    def __init__(self, environ: dict[str, str], **options: float) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self._environ = environ

    def environ(self) -> dict[str, str]:
        return self._environ


@contextlib.asynccontextmanager
async def running(library: Path, driver: Driver, **options: float) -> AsyncIterator[Seen]:
    seen = Seen()
    environ = {**os.environ, "LD_LIBRARY_PATH": str(library), "STANDIN_NVML_STATE": str(driver._path)}
    source = _Told(environ, **{"interval_s": 0.2, "deadline_s": 60.0, **options})
    task = asyncio.create_task(source.run(seen))
    try:
        yield seen
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def test_healthy_devices_are_named_counted_and_say_nothing(library: Path, driver: Driver) -> None:
    async def run() -> None:
        async with running(library, driver) as seen:
            await seen.until(lambda: seen.swept() >= 4)
            assert seen.observations == []
            assert Same(parts=("gpu/0000:10:00", "gpu/GPU-00000000-0000-0000-0000-000000000000", "gpu/0")) in seen.names
            assert seen.levels[("gpu/0000:13:00", "gpu.temperature")] == 45.0
            assert seen.covered[-1] == ("seen", "4 devices")

    asyncio.run(run())


def test_an_event_arrives_without_waiting_for_a_sweep(library: Path, driver: Driver) -> None:
    async def run() -> None:
        async with running(library, driver, interval_s=3600.0) as seen:
            await seen.until(seen.swept)
            driver.set(event=1, event_gpu=2, event_type=8, event_data=79)
            await seen.until(lambda: ("xid.79", "gpu/0000:12:00") in seen.signals())
            driver.set(event=2, event_gpu=1, event_type=32768, event_data=1)
            await seen.until(lambda: ("gpu.recovery_action.reset", "gpu/0000:11:00") in seen.signals())

    asyncio.run(run())


def test_counters_become_signals_once(library: Path, driver: Driver) -> None:
    async def run() -> None:
        async with running(library, driver) as seen:
            await seen.until(seen.swept)
            driver.gpu(1, uncorrected=2)
            driver.gpu(2, remap_pending=1)
            driver.gpu(3, remap_failed=1, field230=2)
            await seen.until(lambda: len(seen.signals()) >= 4)
            before = seen.swept()
            await seen.until(lambda: seen.swept() >= before + 3)
            assert sorted((one.signal, one.part) for one in seen.observations) == [
                ("gpu.ecc.dbe", "gpu/0000:11:00"),
                ("gpu.recovery_action.reboot", "gpu/0000:13:00"),
                ("gpu.remap.failed", "gpu/0000:13:00"),
                ("gpu.remap.pending", "gpu/0000:12:00"),
            ]
            driver.gpu(1, uncorrected=3)
            await seen.until(lambda: sum(one.signal == "gpu.ecc.dbe" for one in seen.observations) == 2)

    asyncio.run(run())


def test_a_lost_device_keeps_the_name_it_had(library: Path, driver: Driver) -> None:
    async def run() -> None:
        async with running(library, driver) as seen:
            await seen.until(seen.swept)
            driver.gpu(2, error=15)
            await seen.until(lambda: ("gpu.lost", "gpu/0000:12:00") in seen.signals())
            lost = next(one for one in seen.observations if one.signal == "gpu.lost")
            assert lost.attributes["serial"] == "165000002"

    asyncio.run(run())


def test_a_device_that_is_not_listed_any_more_is_lost_by_its_name(library: Path, driver: Driver) -> None:
    async def run() -> None:
        async with running(library, driver) as seen:
            await seen.until(seen.swept)
            driver.set(count=3, at2=3)
            await seen.until(lambda: ("gpu.lost", "gpu/0000:12:00") in seen.signals())
            assert not any(one.signal == "gpu.count" for one in seen.observations)

    asyncio.run(run())


def test_fewer_devices_than_the_inventory_says_is_a_signal_of_the_node(library: Path, driver: Driver) -> None:
    async def run() -> None:
        async with running(library, driver, expected=8) as seen:
            await seen.until(lambda: ("gpu.count", "") in seen.signals())
            assert seen.observations[0].attributes == {"expected": "8", "seen": "4"}

    asyncio.run(run())


def test_what_lasts_is_told_and_an_idle_power_cap_is_not(library: Path, driver: Driver) -> None:
    async def run() -> None:
        driver.gpu(0, reasons=0x4)
        driver.gpu(1, reasons=0x48, links_down=2)
        driver.gpu(2, width=8, fabric_state=1)
        driver.gpu(3, fabric_state=3, fabric_mask=1)
        async with running(library, driver, interval_s=0.1) as seen:
            await seen.until(lambda: len(seen.signals()) >= 5)
            assert seen.signals() == {
                ("gpu.throttle.hw_thermal", "gpu/0000:11:00"), ("gpu.nvlink.down", "gpu/0000:11:00"),
                ("gpu.pcie.width", "gpu/0000:12:00"), ("gpu.fabric.state", "gpu/0000:12:00"),
                ("gpu.fabric.health", "gpu/0000:13:00"),
            }  # fmt: skip

    asyncio.run(run())


def test_events_of_the_others_go_on_when_one_device_is_lost(library: Path, driver: Driver) -> None:
    async def run() -> None:
        async with running(library, driver) as seen:
            await seen.until(seen.swept)
            driver.gpu(0, error=15)
            driver.set(wait_error=15)
            await seen.until(lambda: ("gpu.lost", "gpu/0000:10:00") in seen.signals())
            driver.set(wait_error=0, event=1, event_gpu=3, event_data=94)
            await seen.until(lambda: ("xid.94", "gpu/0000:13:00") in seen.signals())

    asyncio.run(run())


def test_slices_are_devices_with_a_parent(library: Path, driver: Driver) -> None:
    async def run() -> None:
        driver.gpu(1, slices=2)
        async with running(library, driver, interval_s=3600.0) as seen:
            await seen.until(seen.swept)
            driver.set(event=1, event_gpu=1, event_type=8, event_data=94, event_instance=2)
            await seen.until(lambda: seen.observations)
            one = seen.observations[0]
            assert (one.signal, one.part) == ("xid.94", "gpu/MIG-00000001-0000-0000-0000-000000000001")
            assert one.attributes["parent"] == "gpu/0000:11:00"

    asyncio.run(run())


def test_a_driver_that_hangs_is_a_signal_and_its_child_is_replaced(library: Path, driver: Driver) -> None:
    async def run() -> None:
        async with running(library, driver, deadline_s=2.5) as seen:
            await seen.until(seen.swept)
            driver.set(hang=1)
            await seen.until(lambda: ("probe.hung.nvml", "") in seen.signals())
            assert any(state == "failing" and "no end of" in detail for state, detail in seen.covered)
            before = seen.swept()
            driver.set(hang=0)
            await seen.until(lambda: seen.swept() > before)

    asyncio.run(run())


def test_a_library_that_does_not_fit_the_driver_is_a_signal(library: Path, driver: Driver) -> None:
    async def run() -> None:
        driver.set(init_error=18)
        async with running(library, driver) as seen:
            await seen.until(lambda: seen.observations)
            assert seen.observations[0].signal == "gpu.driver.mismatch"

    asyncio.run(run())


def test_without_the_library_there_is_nothing_to_see(tmp_path: Path) -> None:
    async def run() -> None:
        seen = Seen()
        await asyncio.wait_for(NvmlSource(interval_s=0.2).run(seen), DEADLINE_S)
        assert seen.covered[-1][0] == "absent"
        assert seen.observations == []

    if _has_driver():
        pytest.skip("this machine has the driver's library")
    asyncio.run(run())


def test_a_package_that_is_not_installed_is_absent() -> None:
    class Nobody(DeviceSource):
        name, module, library = "nobody", "keepstep.nobody", "keepstep_nobody"

    async def run() -> None:
        seen = Seen()
        await Nobody().run(seen)
        assert seen.covered == [("absent", "the Python package keepstep_nobody is not installed")]

    asyncio.run(run())


def _has_driver() -> bool:
    code = "import pynvml; pynvml.nvmlInit()"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=150).returncode == 0


XML = """<nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id="00000000:9B:00.0"><uuid>GPU-0001</uuid><serial>77</serial>
<remapped_rows><remapped_row_pending>Yes</remapped_row_pending></remapped_rows></gpu></nvidia_smi_log>"""


class _ByTool(NvmlSource):
    """As on a machine without the binding: the tool is a script of this test."""

    library = "keepstep_no_such_binding"

    def __init__(self, folder: Path) -> None:
        super().__init__(interval_s=0.2, deadline_s=60.0)
        self._folder = folder

    def child(self) -> str:
        return "keepstep.adapters.nvml.query"

    def environ(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self._folder}{os.pathsep}{os.environ['PATH']}"}


def _tool(folder: Path, text: str) -> None:
    script = folder / "nvidia-smi"
    script.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("text", "signal", "part"),
    [
        (XML, "gpu.remap.pending", "gpu/0000:9b:00"),
        ("Failed to initialize NVML: Driver/library version mismatch", "gpu.driver.mismatch", ""),
        ("No devices were found", "gpu.none", ""),
    ],
)
def test_without_the_binding_the_tool_is_asked(text: str, signal: str, part: str, tmp_path: Path) -> None:
    async def run() -> None:
        _tool(tmp_path, text)
        seen = Seen()
        task = asyncio.create_task(_ByTool(tmp_path).run(seen))
        await seen.until(lambda: seen.observations)
        assert (seen.observations[0].signal, seen.observations[0].part) == (signal, part)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())
