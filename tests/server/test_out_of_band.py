"""The server's look at management controllers: when it asks, and what of the answers becomes a fact."""

import asyncio
import threading
import time
from collections.abc import Callable, Mapping

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.facts import BmcSeen, Fact, SignalSeen
from keepstep.core.ids import NodeId
from keepstep.core.observation import Observation
from keepstep.ports import BmcReading
from keepstep.server import out_of_band
from keepstep.server.out_of_band import MAX_NEWS, MAX_STANDING, OutOfBand, Pace

NODE = NodeId("n1")
QUICK = Pace(every_s=0.02, retry_s=0.01, slowest_s=0.05, jitter=0.1)
DEADLINE_S = 60.0


class Scripted:
    """A controller that gives the readings that a test hands in, the last one for ever."""

    def __init__(self, *readings: BmcReading | Exception) -> None:
        self.readings = list(readings)
        self.cursors: list[dict[str, str]] = []
        self.looks = 0
        self.closed = False
        self.slow_s = 0.0

    def look(self, cursor: Mapping[str, str]) -> BmcReading:
        self.cursors.append(dict(cursor))
        time.sleep(self.slow_s)
        reading = self.readings[min(self.looks, len(self.readings) - 1)]
        self.looks += 1
        if isinstance(reading, Exception):
            raise reading
        return reading

    def power(self):
        return "unknown"

    def switch(self, to):
        return ""

    def close(self) -> None:
        self.closed = True


def state(signal: str, part: str = "", **attributes: str) -> Observation:
    return Observation(signal=signal, part=part, attributes={"record": "state", **attributes}, source="redfish")


def record(signal: str, part: str = "") -> Observation:
    return Observation(signal=signal, part=part, attributes={"record": "log"}, source="redfish")


def up(*observations: Observation, **more) -> BmcReading:
    return BmcReading(reachable=True, power="on", health="OK", observations=observations, **more)


DOWN = BmcReading(reachable=False, observations=(Observation(signal="bmc.unreachable", part="bmc"),))


def facts_of(*readings, until: Callable[[Scripted, list[Fact]], bool] | None = None) -> tuple[list[Fact], Scripted]:
    """Everything that is told until each reading was looked at twice, or until the condition holds."""
    bmc, told = Scripted(*readings), []
    done = until or (lambda bmc, told: bmc.looks > len(readings) + 1)

    async def run() -> None:
        out = OutOfBand({NODE: bmc}, told.append, QUICK)
        out.start()
        deadline = time.monotonic() + DEADLINE_S
        while not done(bmc, told):
            assert time.monotonic() < deadline, f"after {bmc.looks} looks: {told}"
            await asyncio.sleep(0.005)
        await out.stop()

    asyncio.run(run())
    return told, bmc


def keys(facts: list[Fact]) -> list[tuple[str, str]]:
    return [(fact.signal, fact.part) for fact in facts if isinstance(fact, SignalSeen)]


def seen(facts: list[Fact]) -> list[tuple[bool, str]]:
    return [(fact.reachable, fact.power) for fact in facts if isinstance(fact, BmcSeen)]


def test_what_does_not_change_is_told_once():
    facts, bmc = facts_of(up(state("bmc.drive.failed", "disk/3")))
    assert seen(facts) == [(True, "on")] and keys(facts) == [("bmc.drive.failed", "disk/3")]
    assert facts[1].resource == "node/n1" and bmc.closed


def test_a_state_that_is_not_reported_any_more_is_over():
    facts, _ = facts_of(up(state("bmc.drive.failed", "disk/3")), up())
    assert keys(facts) == [("bmc.drive.failed", "disk/3"), ("bmc.cleared", "disk/3")]
    assert facts[-1].attributes["ends"] == "bmc.drive.failed"


def test_a_look_that_left_parts_out_ends_nothing():
    facts, _ = facts_of(up(state("bmc.drive.failed", "disk/3")), up(complete=False))
    assert keys(facts) == [("bmc.drive.failed", "disk/3")]


def test_what_is_below_an_unread_path_is_not_over():
    ill = state("bmc.drive.failed", "disk/3", path="/redfish/v1/Systems/1/Storage/1/Drives/3")
    facts, _ = facts_of(up(ill), up(unread=("/redfish/v1/Systems/1/Storage",)))
    assert keys(facts) == [("bmc.drive.failed", "disk/3")]


def test_one_look_without_an_answer_says_nothing():
    facts, _ = facts_of(up(), DOWN, up())
    assert seen(facts) == [(True, "on")]


def test_a_controller_that_stays_silent_is_told_and_so_is_its_return():
    facts, _ = facts_of(up(), DOWN, DOWN, DOWN, up())
    assert seen(facts) == [(True, "on"), (False, "unknown"), (True, "on")]
    assert keys(facts) == [("bmc.unreachable", "bmc"), ("bmc.cleared", "bmc")]


def test_a_change_of_power_is_told():
    off = BmcReading(reachable=True, power="off", observations=(state("bmc.power.off"),))
    facts, _ = facts_of(up(), off)
    assert seen(facts) == [(True, "on"), (True, "off")] and keys(facts) == [("bmc.power.off", "")]


def test_records_of_a_storm_are_one_signal_with_its_number():
    facts, _ = facts_of(up(*[record("bmc.memory.corrected", "dimm/A1")] * 40), up())
    (signal,) = [fact for fact in facts if isinstance(fact, SignalSeen)]
    assert (signal.signal, signal.count) == ("bmc.memory.corrected", 40)


def test_a_flood_is_cut():
    facts, _ = facts_of(up(*[record("bmc.drive.failed", f"disk/{number}") for number in range(1000)]), up())
    assert len(keys(facts)) == MAX_NEWS


def test_ordinary_talk_is_not_journalled_and_what_joins_is():
    facts, _ = facts_of(up(record("bmc.notice"), record("bmc.boot"), record("bmc.cleared")), up())
    assert keys(facts) == [("bmc.boot", ""), ("bmc.cleared", "")]


def test_the_cursor_is_handed_back_and_kept_while_nobody_answers():
    _, bmc = facts_of(up(cursor={"sel": "4"}), DOWN, up(cursor={"sel": "5"}))
    assert bmc.cursors[:4] == [{}, {"sel": "4"}, {"sel": "4"}, {"sel": "5"}]


def test_an_adapter_that_breaks_ends_no_watch():
    facts, bmc = facts_of(ZeroDivisionError("a bug"), ZeroDivisionError("a bug"), up())
    assert seen(facts) == [(False, "unknown"), (True, "on")] and bmc.looks > 3


def test_a_node_is_looked_at_at_once_when_somebody_asks():
    bmc, told = Scripted(up()), []

    async def run() -> None:
        out = OutOfBand({NODE: bmc}, told.append, Pace(every_s=3600.0, jitter=0.0))
        out.start()
        assert out.ask(NODE) and not out.ask(NodeId("stranger"))
        deadline = time.monotonic() + DEADLINE_S
        for looks in (1, 2, 3):
            while bmc.looks < looks:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.005)
            out.ask(NODE)
        await out.stop()

    asyncio.run(run())
    assert bmc.looks >= 3


def test_no_more_controllers_are_asked_at_once_than_allowed():
    running, most, lock = 0, 0, threading.Lock()

    class Counting(Scripted):
        def look(self, cursor):
            nonlocal running, most
            with lock:
                running += 1
                most = max(most, running)
            time.sleep(0.01)
            with lock:
                running -= 1
            return super().look(cursor)

    bmcs = {NodeId(f"n{number}"): Counting(up()) for number in range(12)}

    async def run() -> None:
        out = OutOfBand(bmcs, lambda fact: None, Pace(every_s=0.001, at_once=3))
        out.start()
        deadline = time.monotonic() + DEADLINE_S
        while any(bmc.looks < 2 for bmc in bmcs.values()):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.005)
        await out.stop()

    asyncio.run(run())
    assert most <= 3


@pytest.mark.parametrize(
    ("failures", "wait_s"), [(0, 30.0), (1, 5.0), (2, 10.0), (3, 20.0), (9, 300.0), (10**6, 300.0)]
)
def test_the_wait_grows_while_nobody_answers(failures, wait_s):
    async def run() -> float:
        return OutOfBand({}, lambda fact: None)._wait_s(failures)

    assert asyncio.run(run()) == wait_s


def test_a_controller_that_invents_parts_costs_bounded_memory():
    watch = out_of_band._Watch(NODE, Scripted(up()))
    for look in range(20):
        invented = [state("bmc.psu.failed", f"psu/{look}-{number}") for number in range(MAX_STANDING // 8)]
        watch.news(up(*invented, complete=False), 2, CATALOG)
    assert len(watch._standing) == MAX_STANDING
    watch.news(up(), 2, CATALOG)
    assert watch._standing == {}
