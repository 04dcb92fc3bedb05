"""The host as a source: clock, pressure, kills, services, reboots. Contract of ports.Source."""

import asyncio
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.adapters.host import HostSource, Service, pressure, services
from keepstep.adapters.host.clock import ClockSteps, discipline
from keepstep.adapters.host.source import boot_before
from keepstep.adapters.local import procfs
from keepstep.adapters.probe import Probes

from .outlet import DEADLINE_S, Kept, watch

CALM = "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
SHORT = "some avg10=60.00 avg60=50.00 avg300=41.00 total=9\nfull avg10=35.00 avg60=20.00 avg300=10.00 total=9\n"


def proc(root: Path, *, memory: str = CALM, kills: int = 0) -> str:
    (root / "pressure").mkdir(exist_ok=True)
    for name, text in (("memory", memory), ("io", CALM), ("cpu", CALM)):
        (root / "pressure" / name).write_text(text)
    (root / "vmstat").write_text(f"nr_free_pages 1\noom_kill {kills}\nnr_x 2\n")
    return str(root)


OF_THIS_MACHINE = {"host.clock_skew", "host.clock_step", "host.zombies"}
"""May be true where the tests run; the files of the other signals are the test's own."""


def told(outlet: Kept) -> list[str]:
    return [signal for signal in outlet.signals if signal not in OF_THIS_MACHINE]


async def looked(source: HostSource, counter: str = "zombies") -> Kept:
    """What one look says."""
    outlet = Kept()
    running = asyncio.ensure_future(source.run(outlet))
    async with asyncio.timeout(DEADLINE_S):
        while ("", counter) not in outlet.levels:
            assert not running.done()
            await asyncio.sleep(0.02)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return outlet


def test_a_healthy_host_says_nothing(tmp_path: Path) -> None:
    outlet = asyncio.run(looked(HostSource(proc=proc(tmp_path))))
    assert told(outlet) == []
    assert [state for state, _ in outlet.covered] == ["seen"]


def test_memory_that_everybody_waits_for_is_told_once(tmp_path: Path) -> None:
    source, outlet = HostSource(proc=proc(tmp_path, memory=SHORT)), Kept()
    seen = asyncio.run(watch(source, outlet, "host.memory_pressure"))
    assert "35%" in seen.detail
    for number in range(1, 10):
        source._look_at_pressure(number, outlet)
    assert outlet.signals.count("host.memory_pressure") == 1


def test_a_kernel_without_pressure_counters_is_no_fault(tmp_path: Path) -> None:
    outlet = asyncio.run(looked(HostSource(proc=str(tmp_path))))
    assert (told(outlet), outlet.covered) == ([], [("seen", "this kernel does not measure pressure")])


@pytest.mark.skipif(not os.access("/proc/pressure/memory", os.W_OK), reason="no pressure triggers for us here")
def test_the_kernels_own_trigger_is_taken_where_it_may_be() -> None:
    outlet = asyncio.run(looked(HostSource()))
    assert outlet.covered[0][0] == "seen"


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_no_text_breaks_the_reading_of_pressure(text: str) -> None:
    found = pressure.parse(text)
    assert found is None or found.some_10 >= -1e300


@pytest.mark.parametrize(("moved_s", "told"), [(0.0, False), (0.04, False), (0.3, True), (-7200.0, True)])
def test_a_step_of_the_wall_clock_is_told_and_slewing_is_not(moved_s: float, told: bool) -> None:
    offsets = iter([100.0, 100.0 + moved_s])
    steps = ClockSteps(lambda: next(offsets))
    step_s = steps.step_s(5.0)
    assert (step_s is not None) is told
    assert step_s is None or step_s == pytest.approx(moved_s)


def test_an_hour_of_slewing_between_two_looks_is_no_step() -> None:
    offsets = iter([0.0, 3600 * 0.0005])
    assert ClockSteps(lambda: next(offsets)).step_s(3600.0) is None


def test_this_hosts_clock_stands() -> None:
    assert ClockSteps().step_s(0.0) is None


def test_the_kernel_says_how_its_clock_is_disciplined() -> None:
    found = discipline()
    assert found is None or abs(found.offset_s) < 1e6


def test_processes_that_the_kernel_ended_for_memory_are_counted_from_here_on(tmp_path: Path) -> None:
    source, outlet = HostSource(proc=proc(tmp_path, kills=7)), Kept()
    source._look_at_kills(outlet)
    assert outlet.signals == []
    proc(tmp_path, kills=9)
    source._look_at_kills(outlet)
    assert [(one.signal, one.attributes["value"]) for one in outlet.seen] == [("host.oom_kill", "2")]


def test_a_boot_since_the_last_agent_is_told(tmp_path: Path) -> None:
    path = tmp_path / "boot"
    assert boot_before(str(path)) == ""
    assert boot_before(str(path)) == procfs.boot_id()
    path.write_text("another\n")
    before = boot_before(str(path))
    outlet = asyncio.run(looked(HostSource(boot_before=before, proc=proc(tmp_path))))
    assert told(outlet) == ["host.reboot"]


def test_a_service_is_known_by_its_pid_file(tmp_path: Path) -> None:
    alive, dead = tmp_path / "alive.pid", tmp_path / "dead.pid"
    alive.write_text(f"{os.getpid()}\n")
    dead.write_text("4194304999\n")
    declared = [Service(name=path.stem, pidfile=str(path)) for path in (alive, dead)]
    found = asyncio.run(services.standing(declared, Probes()))
    assert found["alive"] == ""
    assert "does not live" in found["dead"]


def test_a_service_that_ends_is_told_once(tmp_path: Path) -> None:
    declared = Service(name="slurmd", pidfile=str(tmp_path / "none.pid"))
    seen = asyncio.run(watch(HostSource([declared]), Kept(), "service.down"))
    assert seen.part == "service/slurmd"


def test_a_file_system_that_calls_itself_ill_is_told_once(tmp_path: Path) -> None:
    word = tmp_path / "health_check"
    word.write_text("healthy\n")

    async def scene() -> list[str]:
        source, outlet = HostSource(lustre=str(word)), Kept()
        for text in ("healthy", "NOT HEALTHY", "NOT HEALTHY", "healthy"):
            word.write_text(f"{text}\n")
            await source._look_at_lustre(outlet)
        return outlet.signals

    assert asyncio.run(scene()) == ["lustre.unhealthy"]


def test_units_are_told_apart_by_their_order() -> None:
    text = "Id=a.service\nLoadState=loaded\nActiveState=active\n\nId=real-b.service\nLoadState=loaded\nActiveState=failed\n"
    more = "\nId=c.service\nLoadState=not-found\nActiveState=inactive\n"
    states = services._states(text + more, ["a.service", "b.service", "c.service"])
    assert states["a.service"] == ""
    assert "failed" in states["b.service"]
    assert "not installed" in states["c.service"]
