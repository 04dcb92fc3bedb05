"""Mounts, drives and arrays: real children, a stand-in smartctl, and files that the test writes."""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from keepstep.adapters.disk.md import ArrayWatch
from keepstep.adapters.disk.smart import SmartSource
from keepstep.adapters.disk.space import SpaceSource
from keepstep.core.observation import Observation, Same
from keepstep.ports import Source


class Heard:
    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.levels: list[tuple[str, str, float]] = []
        self.states: list[str] = []
        self.names: list[Same] = []

    def observe(self, observation: Observation) -> None:
        self.observations.append(observation)

    def level(self, part: str, counter: str, value: float) -> None:
        self.levels.append((part, counter, value))

    def same(self, same: Same) -> None:
        self.names.append(same)

    def coverage(self, state: Literal["seen", "absent", "failing"], detail: str = "") -> None:
        self.states.append(state)


def run(source: Source, heard: Heard, enough: Callable[[], bool]) -> None:
    async def body() -> None:
        task = asyncio.create_task(source.run(heard))
        async with asyncio.timeout(90):
            while not enough() and not task.done():
                await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(body())


def question(*numbers: int) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", f"print({list(numbers)})")


def mounts(tmp_path: Path, line: str) -> Path:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(line)
    return tmp_path


def test_a_real_mount_is_measured() -> None:
    heard = Heard()
    run(SpaceSource(["/"], timeout_s=90.0), heard, lambda: bool(heard.levels))
    part, counter, percent = heard.levels[0]
    assert (part, counter) == ("mount//", "used_percent")
    assert 0 <= percent <= 100


def test_a_full_disk_is_told_once(tmp_path: Path) -> None:
    heard = Heard()
    proc = mounts(tmp_path, "/dev/nvme0n1 /local xfs rw 0 0\n")
    run(
        SpaceSource(["/local"], proc=proc, question=question(1000, 0, 0, 0, 0, 0), period_s=0.01, timeout_s=90.0),
        heard, lambda: len(heard.levels) > 3,
    )  # fmt: skip
    assert [(x.signal, x.part) for x in heard.observations] == [("space.full", "mount//local")]


def test_a_shared_mount_that_does_not_answer_is_its_server(tmp_path: Path) -> None:
    heard = Heard()
    proc = mounts(tmp_path, "filer:/ckpt /ckpt nfs4 rw 0 0\n")
    asks_for_ever = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
    run(
        SpaceSource(["/ckpt"], proc=proc, question=asks_for_ever, period_s=0.05, timeout_s=0.3),
        heard, lambda: bool(heard.observations),
    )  # fmt: skip
    assert [(x.signal, x.part) for x in heard.observations] == [("mount.stale", "dependency/nfs:filer")]


def test_a_full_file_system_in_memory_is_told_where_it_is_declared(tmp_path: Path) -> None:
    heard = Heard()
    proc = mounts(tmp_path, "tmpfs /dev/shm tmpfs rw 0 0\n")
    source = SpaceSource(["/dev/shm"], proc=proc, question=question(1000, 0, 0, 0, 0, 0), timeout_s=90.0)
    run(source, heard, lambda: bool(heard.observations))
    assert [(x.signal, x.part) for x in heard.observations] == [("space.full", "mount//dev/shm")]


REPORT = {
    "smartctl": {"exit_status": 0}, "device": {"name": "/dev/nvme3"}, "serial_number": "S1", "smart_status": {"passed": True},
    "nvme_smart_health_information_log": {"critical_warning": 0, "available_spare": 2, "available_spare_threshold": 10,
                                          "media_errors": 0, "percentage_used": 7},
}  # fmt: skip


def test_drives_are_asked_through_smartctl_and_told_once(tmp_path: Path) -> None:
    program = tmp_path / "smartctl"
    scan = json.dumps({"devices": [{"name": "/dev/nvme3"}]})
    program.write_text(f"#!/bin/sh\nif [ \"$1\" = --scan ]; then echo '{scan}'; else echo '{json.dumps(REPORT)}'; fi\n")
    program.chmod(0o755)
    heard = Heard()
    run(SmartSource(program=str(program), period_s=0.05, timeout_s=90.0), heard, lambda: len(heard.levels) > 8)
    assert [(x.signal, x.part) for x in heard.observations] == [("smart.failed", "disk/nvme3")]
    assert heard.names[0].parts == ("disk/nvme3", "disk/S1")
    assert heard.states[0] == "seen"


def test_without_smartctl_the_source_is_absent_and_ends() -> None:
    heard = Heard()
    run(SmartSource(program="/nonexistent/smartctl"), heard, lambda: False)
    assert heard.states == ["absent"]


def test_an_array_that_degrades_is_told_once(tmp_path: Path) -> None:
    good = "Personalities : [raid1]\nmd0 : active raid1 b[1] a[0]\n      5 blocks super 1.2 [2/2] [UU]\n"
    (tmp_path / "mdstat").write_text(good)
    watch = ArrayWatch(tmp_path)
    assert watch.look(0.0).observations == []
    (tmp_path / "mdstat").write_text(good.replace("[2/2] [UU]", "[2/1] [U_]"))
    assert [(x.signal, x.part) for x in watch.look(30.0).observations] == [("md.degraded", "disk/md0")]
    assert watch.look(60.0).observations == []
