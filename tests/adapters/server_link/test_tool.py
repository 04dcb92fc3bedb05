"""A tool's conversation: answers, errors by kind, several servers, TLS. The server is scripted, in a thread of its own."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from tests.adapters.server_link.identities import Installation

from keepstep.adapters.server_link.address import Address
from keepstep.adapters.server_link.errors import Conflict, Forbidden, NoLeader, ServerGone, ServerRefused
from keepstep.adapters.server_link.sockets import read_message
from keepstep.adapters.server_link.tls import server_context
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.wire.messages import Act, Hello, Message, NotLeader, Query, Refused, Reply, Welcome, encode
from keepstep.wire.requests import Accepted, Hold

ACCEPTED = Accepted(entry=3, subject="node/n0")
Script = Callable[[Message], Message]


def answers(message: Message) -> Message:
    match message:
        case Hello(token="wrong"):
            return Refused(reason="wrong token")
        case Hello():
            return Welcome(protocol=2, server="scripted")
        case Query(what="echo", args=args):
            return Reply(ok=True, body=msgspec.Raw(msgspec.msgpack.encode(args)))
        case Query(what=what):
            return Reply(ok=False, error=f"no {what}", kind=what)
        case Act(request=Hold(resource="node/n0"), key="k"):
            return Reply(ok=True, body=msgspec.Raw(msgspec.msgpack.encode(ACCEPTED)))
    return Reply(ok=False, error="closed already", kind="Conflict")


class Servers:
    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._open: list[asyncio.Server] = []
        self.hellos: list[Hello] = []

    def start(self, script: Script = answers, context: object = None) -> Address:
        return asyncio.run_coroutine_threadsafe(self._start(script, context), self.loop).result(60)

    async def _start(self, script: Script, context: object) -> Address:
        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    message = await read_message(reader)
                    if isinstance(message, Hello):
                        self.hellos.append(message)
                    writer.write(encode(script(message)))
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

        self._open.append(await asyncio.start_server(client, "127.0.0.1", 0, ssl=context))  # type: ignore[arg-type]
        port = self._open[-1].sockets[0].getsockname()[1]
        return Address("tls" if context else "tcp", host="localhost" if context else "127.0.0.1", port=port)

    def close(self) -> None:
        async def end() -> None:
            for server in self._open:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            if others:
                await asyncio.wait(others, timeout=60)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(60)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def servers() -> Iterator[Servers]:
    made = Servers()
    yield made
    made.close()


def test_questions_and_requests_are_answered(servers: Servers) -> None:
    with ToolClient(str(servers.start()), "t", user="ann") as tool:
        assert tool.server == "scripted"
        assert tool.query("echo", dict, job="j") == {"job": "j"}
        assert tool.act(Hold(resource="node/n0", reason="r"), "k") == ACCEPTED
    assert (servers.hellos[0].user, servers.hellos[0].role) == ("ann", "tool")


def test_each_kind_of_no_is_its_own_error(servers: Servers) -> None:
    with ToolClient(str(servers.start()), "t") as tool:
        with pytest.raises(Forbidden, match="no Forbidden"):
            tool.query("Forbidden", dict)
        with pytest.raises(Conflict, match="closed already"):
            tool.act(Hold(resource="node/n1"), "k")
        with pytest.raises(ServerRefused, match="no ValueError") as caught:
            tool.query("ValueError", dict)
        assert type(caught.value) is ServerRefused
    with pytest.raises(ServerRefused, match="wrong token"):
        ToolClient(str(servers.start()), "wrong")


def test_the_next_server_is_asked_and_a_follower_leads_on(servers: Servers) -> None:
    leader = servers.start()
    follower = servers.start(lambda message: NotLeader(leader=str(leader)))
    with ToolClient(f"tcp:127.0.0.1:1,{follower}", "t") as tool:
        assert tool.server == "scripted"
    with pytest.raises(ServerGone, match=r"no server answers at tcp:127\.0\.0\.1:1"):
        ToolClient("tcp:127.0.0.1:1", "t")


def test_a_tool_waits_for_a_leader_but_not_for_ever(servers: Servers) -> None:
    asked: list[Message] = []

    def becoming(message: Message) -> Message:
        asked.append(message)
        return NotLeader() if len(asked) < 3 else answers(message)

    with ToolClient(str(servers.start(becoming)), "t") as tool:
        assert tool.server == "scripted"
    following = servers.start(lambda message: NotLeader())
    for known in (f"{following}", f"{following},tcp:127.0.0.1:1"):
        with pytest.raises(NoLeader, match="follows"):
            ToolClient(known, "t", timeout_s=3.0)


def test_over_tls_the_certificate_speaks_and_trouble_is_told(servers: Servers, tmp_path: Path) -> None:
    installation = Installation(tmp_path / "a")
    files = installation.server()
    address = servers.start(context=server_context(str(files.certificate), str(files.key), str(files.authority)))
    with ToolClient(str(address), "", identity_dir=installation.node()) as tool:
        assert tool.query("echo", dict, x=1) == {"x": 1}
    with pytest.raises(ServerRefused, match="keepstep join"):
        ToolClient(str(address), "", identity_dir=str(tmp_path / "none"))
    with pytest.raises(ServerRefused, match="not signed by the authority"):
        ToolClient(str(address), "", identity_dir=Installation(tmp_path / "b").node())
    old = installation.node("old", life_s=60.0, now_s=time.time() - 3600.0)
    with pytest.raises(ServerGone, match="has expired"):
        ToolClient(str(address), "", identity_dir=old)
