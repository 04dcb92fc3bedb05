"""Probes in children: what hangs is seen, left, and never waited for. Dependencies and mounts on top of them."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.adapters.dependencies import Dependency, DependencySource, Mount
from keepstep.adapters.dependencies.looks import Answer, look
from keepstep.adapters.dependencies.mounts import file_system
from keepstep.adapters.dependencies.standing import CONFIRM_LOOKS, Standing
from keepstep.adapters.probe import Probe, Probes, resolve, run_probe

from .hanging_mount import HangingMount
from .outlet import DEADLINE_S, Kept, watch

SLEEPS = ("sleep", "600")


# ---- the child


def test_what_a_probe_prints_comes_back() -> None:
    probe = asyncio.run(run_probe(["sh", "-c", "cat; echo bad >&2"], 60, stdin=b"word"))
    assert (probe.outcome, probe.stdout, probe.stderr, probe.code) == ("ok", b"word", b"bad\n", 0)


def test_a_probe_that_fails_says_why() -> None:
    probe = asyncio.run(run_probe(["sh", "-c", "echo no such disk >&2; exit 3"], 60))
    assert (probe.outcome, probe.code) == ("failed", 3)
    assert "no such disk" in probe.detail


def test_a_program_that_is_not_there_is_a_failed_probe() -> None:
    assert asyncio.run(run_probe(["no-such-program-here"], 60)).outcome == "failed"


async def hung(argv: Sequence[str], deadline_s: float) -> Probe:
    """A probe that is ended, and whose child is gone then: at once, or as soon as this machine comes to it."""
    probes = Probes()
    probe = await probes.run(argv, deadline_s)
    assert probe.outcome == "hung"
    async with asyncio.timeout(DEADLINE_S):
        while probes.left:
            await asyncio.sleep(0.01)
    return probe


def test_a_probe_that_hangs_is_ended_at_its_deadline() -> None:
    assert asyncio.run(hung(SLEEPS, 0.1)).stdout == b""


def test_a_stopped_helper_is_ended_as_well() -> None:
    assert asyncio.run(hung(["sh", "-c", "kill -STOP $$; echo late"], 0.2)).stdout == b""


def test_nothing_that_a_probe_started_outlives_it(tmp_path: Path) -> None:
    asyncio.run(run_probe(["sh", "-c", f"sleep 600 & echo $! > {tmp_path}/pid"], 60))
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        for _ in range(6000):
            os.kill(pid, 0)
            time.sleep(0.01)


def test_what_is_printed_without_end_is_bounded() -> None:
    probe = asyncio.run(run_probe(["sh", "-c", "yes | head -c 5000000"], 60))
    assert probe.outcome == "ok"
    assert len(probe.stdout) == 256 * 1024


def test_a_child_that_cannot_be_ended_is_left_and_no_second_one_is_started() -> None:
    async def scene() -> None:
        probes = Probes(kill=lambda pid: None)
        first = await probes.run(SLEEPS, 0.1, name="disk")
        assert (first.outcome, first.left) == ("hung", True)
        pid = probes.left["disk"]
        again = await probes.run(SLEEPS, 3600, name="disk")
        assert (again.outcome, again.left, probes.left) == ("hung", True, {"disk": pid})
        assert (await probes.run(["true"], 60, name="other")).outcome == "ok"
        os.kill(pid, signal.SIGKILL)
        while probes.left:
            await asyncio.sleep(0.01)
        assert (await probes.run(["true"], 60, name="disk")).outcome == "ok"

    asyncio.run(asyncio.wait_for(scene(), 60))


def stand_still_over_its_end() -> None:
    """And over every deadline meanwhile: then both are due in one turn of the loop."""
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    time.sleep(1.0)


def test_a_child_that_ends_in_the_turn_of_its_deadline_has_ended() -> None:
    async def scene() -> None:
        asyncio.get_running_loop().call_later(0.05, stand_still_over_its_end)
        probe = await Probes().run(["sleep", "0.3"], 0.5)
        assert (probe.outcome, probe.code) == ("ok", 0)

    asyncio.run(scene())


def test_nor_is_one_left_that_dies_in_the_last_turn() -> None:
    async def scene() -> None:
        def kill(pid: int) -> None:
            asyncio.get_running_loop().call_later(0.05, kill_and_stand_still, pid)

        def kill_and_stand_still(pid: int) -> None:
            os.killpg(pid, signal.SIGKILL)
            stand_still_over_its_end()

        probes = Probes(kill=kill)
        probe = await probes.run(SLEEPS, 0.1, name="disk")
        assert (probe.outcome, probe.left, probes.left) == ("hung", False, {})

    asyncio.run(scene())


def test_a_name_is_resolved_outside_of_the_agent() -> None:
    assert set(asyncio.run(resolve("localhost", 60))) & {"127.0.0.1", "::1"}
    assert asyncio.run(resolve("192.0.2.7", 60)) == ["192.0.2.7"]
    with pytest.raises(OSError, match=r"not known|not resolved"):
        asyncio.run(resolve("no-such-host.invalid", 60))


# ---- mounts


def test_a_mount_that_answers_tells_how_full_it_is(tmp_path: Path) -> None:
    async def scene() -> Kept:
        outlet = Kept()
        source = DependencySource([], [Mount(name="data", path=str(tmp_path), write=True, deadline_s=60)])
        running = asyncio.ensure_future(source.run(outlet))
        async with asyncio.timeout(60):
            while not any(counter == "free_share" for _, counter in outlet.levels):
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return outlet

    outlet = asyncio.run(scene())
    assert outlet.seen == []
    assert list(tmp_path.iterdir()) == []


def test_a_mount_that_hangs_is_a_signal_and_is_not_waited_for() -> None:
    mount = Mount(name="data", path="/", deadline_s=0.2)
    seen = asyncio.run(
        watch(DependencySource([], [mount], touch=("sh", "-c", "sleep 600")), Kept(), "mount.hung.local")
    )
    assert seen.part == "mount/"
    assert seen.attributes["mount"] == "/"


def test_a_mount_that_is_not_mounted_is_no_healthy_directory(tmp_path: Path) -> None:
    mount = Mount(name="data", path=str(tmp_path), file_system="nfs4", every_s=1)
    seen = asyncio.run(watch(DependencySource([], [mount]), Kept(), "mount.failed"))
    assert "not nfs4" in seen.detail


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[HangingMount]:
    try:
        mount = HangingMount(tmp_path / "mnt")
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield mount
    finally:
        mount.close()


def test_a_file_system_that_never_answers_is_seen_while_the_other_mount_is_still_watched(
    hanging: HangingMount, tmp_path: Path
) -> None:
    outlet = Kept()
    mounts = [
        Mount(name="dead", path=str(hanging.path), deadline_s=0.5), Mount(name="well", path=str(tmp_path), deadline_s=60),
    ]  # fmt: skip

    def well_is_watched() -> bool:
        return any(counter == "free_share" for _, counter in outlet.levels)

    seen = asyncio.run(watch(DependencySource([], mounts), outlet, "mount.hung", well_is_watched))
    assert seen.attributes["mount"] == str(hanging.path)
    assert seen.part.startswith("dependency/fuse")


MOUNTINFO = """22 1 8:1 / / rw - ext4 /dev/sda1 rw
40 22 0:30 / /data rw - nfs4 filer1:/export/data rw,vers=4.2
41 40 0:31 / /data/my\\040set rw - lustre 10.0.0.1@tcp:/scratch rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "server"),
    [
        ("/data", "nfs:filer1"), ("/data/x", "nfs:filer1"), ("/database", ""), ("/", ""),
        ("/data/my set/x", "lustre:scratch"),
    ],
)  # fmt: skip
def test_whom_a_mount_depends_on_is_known_without_touching_it(path: str, server: str) -> None:
    assert file_system(path, MOUNTINFO).server == server


# ---- dependencies


def test_one_failed_look_is_a_hiccup_and_two_are_an_outage() -> None:
    standing = Standing()
    assert standing.look(False, False, 0.0) is None
    assert standing.is_suspicious
    assert standing.look(True, False, 1.0) is None
    changes = [standing.look(ok, False, 2.0 + n) for n, ok in enumerate([False, False, False, True, True])]
    assert changes == [None, "down", None, "ok", None]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.floats(0.1, 400)), max_size=60))
def test_down_and_ok_take_turns(looks: list[tuple[bool, bool, float]]) -> None:
    standing, now_s, failures = Standing(), 0.0, 0
    told: list[str] = []
    for ok, slow, pause_s in looks:
        now_s += pause_s
        failures = 0 if ok else failures + 1
        change = standing.look(ok, slow, now_s)
        if change is not None:
            told.append(change)
        assert change != "down" or failures >= CONFIRM_LOOKS
        assert change != "ok" or ok
    assert not any(pair == ("ok", "ok") for pair in itertools.pairwise(told))
    assert told[:1] != ["ok"]


@asynccontextmanager
async def serving(
    answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[int]:
    """A server on a port that is given; every conversation is over at the end."""
    open_now: set[asyncio.Task[None]] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await answer(reader, writer)
            await writer.wait_closed()
        except ConnectionError:
            writer.close()
        finally:
            open_now.discard(task)

    async with await asyncio.start_server(converse, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait_for(asyncio.gather(*open_now), 60)
        await asyncio.sleep(0)


async def _answering(reply: bytes) -> Answer:
    """What a look makes of a server that gives this reply."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async with serving(answer) as port:
        url = f"http://127.0.0.1:{port}/health"
        return await look(Dependency(name="d", kind="http", url=url, deadline_s=60), "n0")


@pytest.mark.parametrize(
    ("reply", "ok"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nhello", True),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH\r\n\r\n", False),
        (b"", False),
        (b"x" * 200_000, False),
    ],
)
def test_an_answer_that_is_no_server_error_is_an_answer(reply: bytes, ok: bool) -> None:
    assert asyncio.run(_answering(reply)).ok is ok


def test_an_object_must_come_back_as_it_was_put() -> None:
    kept: dict[str, bytes] = {}

    async def store(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        if method == "PUT":
            size = int(head.lower().split("content-length: ")[1].split("\r")[0])
            kept[path] = await reader.readexactly(size)
        body = kept.get(path, b"") if method == "GET" else b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body[:bytes_given])
        writer.close()

    async def scene() -> tuple[bool, str]:
        async with serving(store) as port:
            url = f"http://127.0.0.1:{port}/bucket"
            answer = await look(Dependency(name="d", kind="object", url=url, deadline_s=60), "n0")
            return answer.ok, answer.detail

    bytes_given = 1000
    assert asyncio.run(scene()) == (True, "")
    assert list(kept) == ["/bucket/keepstep-probe-n0"]
    bytes_given = 5
    ok, detail = asyncio.run(scene())
    assert not ok
    assert "another object" in detail


def test_a_store_is_looked_at_by_the_client_of_checkpoints(tmp_path: Path) -> None:
    answer = asyncio.run(look(Dependency(name="d", kind="store", url=str(tmp_path / "store"), deadline_s=60), "n0"))
    assert (answer.ok, answer.detail) == (True, "")
    (tmp_path / "file").write_text("no directory")
    answer = asyncio.run(look(Dependency(name="d", kind="store", url=str(tmp_path / "file"), deadline_s=60), "n0"))
    assert not answer.ok
    assert str(tmp_path / "file") in answer.detail


def test_a_service_that_accepts_and_says_nothing_is_late() -> None:
    async def scene() -> tuple[bool, bool]:
        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        async with serving(silent) as port:
            url = f"http://127.0.0.1:{port}/"
            answer = await look(Dependency(name="d", kind="http", url=url, deadline_s=0.3), "n0")
            return answer.ok, answer.late

    assert asyncio.run(scene()) == (False, True)


def test_a_secret_in_an_address_is_not_told() -> None:
    url = "http://user:secret@127.0.0.1:9/bucket?signature=secret"
    dependency = Dependency(name="d", kind="http", url=url, every_s=1, deadline_s=1)
    seen = asyncio.run(watch(DependencySource([dependency]), Kept(), "dependency.down"))
    assert "secret" not in seen.detail
