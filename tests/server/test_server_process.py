"""The server as a process: start, lock, token, strangers, repeated reports, the end."""

import contextlib
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time

import msgspec
import pytest
from tests.server.conftest import DEADLINE_S, Client

from keepstep.adapters.database.opening import open_journal
from keepstep.adapters.server_link.address import parse_address
from keepstep.core import facts as f
from keepstep.core.ids import JobId, NodeId, Session
from keepstep.server import views
from keepstep.wire import messages as m
from keepstep.wire.requests import Hold

SPEC = f.JobSpec(argv=("train.py",), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1))
SUBMITTED = f.JobSubmitted(job=JobId("j"), spec=SPEC)


def records(server):
    journal = open_journal(server.state.journal, read_only=True)
    try:
        return [entry.record for entry in journal.read()]
    finally:
        journal.close()


def ask(client, what, kind, **args):
    client.send(m.Query(what=what, args=args))
    reply = client.expect(m.Reply)
    assert reply.ok, reply.error
    return msgspec.msgpack.decode(reply.body, type=kind)


def test_it_welcomes_whoever_has_the_token(lasting, reach):
    welcome = reach().receive()
    assert isinstance(welcome, m.Welcome)
    assert welcome.protocol == m.PROTOCOL
    assert welcome.acked == 0


def test_token_and_socket_are_private(lasting):
    assert stat.S_IMODE(lasting.state.token_file.stat().st_mode) == 0o600
    path = lasting.address.removeprefix("unix:")
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_a_wrong_token_is_refused(lasting, reach):
    client = reach(token="guess")
    refused = client.receive()
    assert isinstance(refused, m.Refused)
    assert "token" in refused.reason
    with pytest.raises(ConnectionError):
        client.receive()


def test_another_protocol_is_refused_and_both_versions_are_named(lasting, reach):
    refused = reach(protocol=m.PROTOCOL + 7).receive()
    assert isinstance(refused, m.Refused)
    assert str(m.PROTOCOL) in refused.reason
    assert str(m.PROTOCOL + 7) in refused.reason


def test_a_launcher_must_say_who_it_is(lasting, reach):
    refused = reach("launcher", job=JobId("j")).receive()
    assert isinstance(refused, m.Refused)
    assert "session" in refused.reason


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x00\x00\x00\x05hello",
        b"\xff\xff\xff\xff" + b"x" * 64,
        b"\x00\x00\x00\x01\xc0",
        random.Random(4096).randbytes(4096),
        m.encode(m.Ack(number=1)),
        m.encode(m.Query(what="jobs")),
    ],
    ids=["http", "text", "huge", "nil", "random", "ack first", "query first"],
)
def test_a_stranger_that_sends_garbage_is_dropped_and_the_server_lives(lasting, reach, garbage):
    stranger = parse_address(lasting.address).connect(60.0)
    stranger.sendall(garbage)
    stranger.settimeout(DEADLINE_S)
    got = b""
    while chunk := _read(stranger):
        got += chunk
    stranger.close()
    assert got == b""
    assert isinstance(reach().receive(), m.Welcome)


def _read(link):
    try:
        return link.recv(4096)
    except ConnectionResetError:
        return b""


def test_a_client_that_turns_to_garbage_is_dropped_and_the_server_lives(lasting, reach):
    client = reach()
    client.expect(m.Welcome)
    client.socket.sendall(b"\x00\x00\x00\x05hello")
    with pytest.raises(ConnectionError):
        client.receive()
    assert isinstance(reach().receive(), m.Welcome)


def test_a_client_may_not_speak_as_the_server(lasting, reach):
    client = reach()
    client.expect(m.Welcome)
    client.send(m.JobEnded(job=JobId("j"), exit_code=0, message=""))
    with pytest.raises(ConnectionError):
        client.receive()


def test_a_slow_stranger_holds_nothing_up(lasting, reach):
    slow = parse_address(lasting.address).connect(60.0)
    slow.sendall(b"\x00\x00")
    client = reach()
    client.expect(m.Welcome)
    assert ask(client, "jobs", views.Jobs) == views.Jobs(jobs=())
    slow.close()


def test_a_report_is_in_the_journal_when_it_is_acknowledged(server, connect):
    client = connect("front", job=JobId("j"), session=Session("s"))
    client.expect(m.Welcome)
    client.send(m.Report(number=1, fact=SUBMITTED))
    assert client.expect(m.Ack) == m.Ack(number=1)
    server.kill()
    assert SUBMITTED in records(server)


def test_a_repeated_report_is_acknowledged_but_not_journalled_again(server, connect):
    client = connect("front", job=JobId("j"), session=Session("s"))
    client.expect(m.Welcome)
    for number in (1, 1, 2, 1, 2):
        client.send(m.Report(number=number, fact=SUBMITTED))
    ack = client.expect(m.Ack)
    while ack.number < 2:
        ack = client.expect(m.Ack)
    client.close()
    again = connect("front", job=JobId("j"), session=Session("s"))
    assert again.expect(m.Welcome).acked == 2
    again.send(m.Report(number=2, fact=SUBMITTED))
    assert again.expect(m.Ack).number == 2
    assert records(server).count(SUBMITTED) == 2


def test_what_was_received_is_known_after_a_kill(server, connect):
    client = connect("front", job=JobId("j"), session=Session("s"))
    client.expect(m.Welcome)
    client.send(m.Report(number=1, fact=SUBMITTED))
    client.expect(m.Ack)
    server.restart()
    again = connect("front", job=JobId("j"), session=Session("s"))
    assert again.expect(m.Welcome).acked == 1
    again.send(m.Report(number=1, fact=SUBMITTED))
    assert again.expect(m.Ack).number == 1
    assert records(server).count(SUBMITTED) == 1


def test_a_burst_of_reports_is_taken_whole_and_in_order(lasting, reach):
    client = reach("front", job=JobId("j"), session=Session("burst"))
    client.expect(m.Welcome)
    facts = [f.ProbeFailed(source="probe", job=JobId("j"), detail=str(n)) for n in range(500)]
    client.socket.sendall(b"".join(m.encode(m.Report(number=n + 1, fact=fact)) for n, fact in enumerate(facts)))
    while client.expect(m.Ack).number < 500:
        pass
    assert [r.detail for r in records(lasting) if isinstance(r, f.ProbeFailed)] == [str(n) for n in range(500)]


def test_beats_are_not_journalled(server, launcher):
    """The steps that they tell are summed up: three hundred at once are a few entries, on a slow machine, too."""
    one = launcher()
    one.pump_until(lambda: one.ranks, "it runs")
    for _ in range(300):
        one.beat()

    one.rank_exits(0, exit_code=0)  # behind them on the same connection: once it is known, they were heard

    def of(kind):
        return [record for record in records(server) if isinstance(record, kind)]

    one.pump_until(lambda: of(f.RankExited), "what came behind the beats")
    assert 1 <= len(of(f.StepsAdvanced)) < 100
    assert not any("Beat" in type(record).__name__ for record in records(server))


def test_a_stale_session_is_told_and_its_reports_change_nothing(server, launcher, connect):
    old = launcher()
    old.pump_until(lambda: old.step >= 3, "the first launcher runs")
    old.disconnect()
    new = launcher()
    new.pump_until(
        lambda: any(type(o.intent).__name__ == "Fence" for o in new.orders), "the new session is asked to fence"
    )
    stale = connect("launcher", job=JobId("j"), node=NodeId("n0"), session=old.session)
    stale.expect(m.Welcome)
    assert isinstance(stale.receive(), m.Superseded)
    before = len(new.orders)
    lie = f.RankExited(
        job=JobId("j"), node=NodeId("n0"), session=old.session, generation=1, rank=0, slot=0, exit_code=1
    )
    stale.send(m.Report(number=100, fact=lie))
    assert stale.expect(m.Ack).number == 100
    assert lie in records(server)
    new.pump_until(lambda: new.generation == 2 and new.step >= 5, "the new session runs")
    assert "CollectStacks" not in new.kinds()
    assert [type(o.intent).__name__ for o in new.orders[before:]].count("Fence") == 0


def test_a_session_is_not_to_be_had_by_another_node(server, launcher, connect):
    """It would get the orders of that launcher, and use up the numbers of its reports."""
    one = launcher()
    one.pump_until(lambda: one.ranks, "it runs")
    thief = connect("launcher", job=JobId("j"), node=NodeId("n9"), session=one.session)
    assert "another" in thief.receive().reason
    one.disconnect()
    again = connect("launcher", job=JobId("j"), node=NodeId("n9"), session=one.session)
    assert "another" in again.receive().reason
    server_own = connect("launcher", job=JobId("j"), node=NodeId("n9"), session=Session("ask-1"))
    assert "the server itself" in server_own.receive().reason


@pytest.mark.parametrize("role", ["tool", "front", "agent"])
def test_what_is_not_ones_to_report_is_refused_and_told_to_the_journal(lasting, reach, role):
    client = reach(role, job=JobId("j"), node=NodeId("n0"), session=Session("s"))
    client.expect(m.Welcome)
    dead = f.NodeLeft(job=JobId("j"), node=NodeId("n1"), session=Session("s"))
    client.send(m.Report(number=1, fact=dead))
    with pytest.raises(ConnectionError):
        client.expect(m.Ack)

    def refused():
        told = [one.what for one in records(lasting) if isinstance(one, f.RequestRefused)]
        return [what for what in told if what.startswith("report") and what.endswith(f"as {role}")]

    deadline = time.monotonic() + DEADLINE_S
    while not refused():
        assert time.monotonic() < deadline, "the refusal is not in the journal"
        time.sleep(0.02)
    assert refused() == [f"report of NodeLeft as {role}"]
    assert dead not in records(lasting)


def test_unknown_questions_are_answered_with_an_error(lasting, reach):
    client = reach()
    client.expect(m.Welcome)
    for query, words in (
        (m.Query(what="secrets"), "unknown question"),
        (m.Query(what="incident", args={"id": "inc-9"}), "no incident"),
        (m.Query(what="live", args={"job": "nope"}), "no job"),
        (m.Query(what="jobs", args={"colour": 1}), "colour"),
    ):
        client.send(query)
        reply = client.expect(m.Reply)
        assert not reply.ok
        assert words in reply.error


def test_a_hold_of_a_person_is_seen_in_resources(server, launcher, connect):
    one = launcher()
    one.pump_until(lambda: one.ranks, "it runs")
    tool = connect(user="ada")
    tool.expect(m.Welcome)
    tool.send(m.Act(request=Hold(resource="node/n0", reason="cable")))
    assert tool.expect(m.Reply).ok
    (node,) = [r for r in ask(tool, "resources", views.Resources).resources if r.id == "node/n0"]
    assert not node.allocatable
    assert [hold.source for hold in node.holds] == ["person:ada"]


@pytest.mark.parametrize(("options", "code"), [((), 75), (("--exit-when-idle-s", "9"), 0)])
def test_a_second_server_leaves_while_the_first_answers(lasting, reach, options, code):
    """Whoever asks for this one must notice, and whatever starts it anew must try again; a run is content with any."""
    argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(lasting.state.path), *options]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert second.returncode == code
    assert "already runs" in second.stderr
    assert lasting.address in second.stderr
    assert isinstance(reach().receive(), m.Welcome)


def test_a_second_server_says_so_when_the_first_does_not_answer(server):
    os.unlink(server.address.removeprefix("unix:"))
    argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(server.state.path)]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert second.returncode == 1
    assert f"pid {server.process.pid}" in second.stderr


def test_the_lock_is_free_after_a_kill(server, connect):
    first = connect().expect(m.Welcome).server
    server.restart()
    assert connect().expect(m.Welcome).server != first


def test_tcp_with_a_free_port(state, request):
    from_conftest = type(request.getfixturevalue("server"))
    other = type(state)(state.path.with_name("tcp"))
    server = from_conftest(other, "--listen", "tcp:127.0.0.1:0")
    try:
        server.start()
        assert server.address.startswith("tcp:127.0.0.1:")
        link = parse_address(server.address).connect(60.0)
        link.sendall(m.encode(m.Hello(protocol=m.PROTOCOL, role="tool", token=other.token())))
        assert int.from_bytes(link.recv(4), "big") > 0
        link.close()
    finally:
        server.kill()


def test_sigterm_ends_it_in_good_order(server):
    path = server.address.removeprefix("unix:")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=DEADLINE_S) == 0
    assert not os.path.exists(path)


def test_it_leaves_when_idle_and_not_while_a_client_is_there(state, request):
    from_conftest = type(request.getfixturevalue("server"))
    other = type(state)(state.path.with_name("idle"))
    server = from_conftest(other, "--exit-when-idle-s", "0.6")
    try:
        client = _let_in(server)
        time.sleep(1.5)
        assert server.process.poll() is None
        client.close()
        assert server.process.wait(timeout=DEADLINE_S) == 0
    finally:
        server.kill()


def _let_in(server):
    """A client of a server that leaves soon. Where this process pauses before it is there, the server has rightly left."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        server.start(wait=False)
        while server.alive:
            assert time.monotonic() < deadline, server.state.log.read_text()
            if server.state.address() is not None:
                with contextlib.suppress(OSError):
                    client = Client(server, "tool")
                    if isinstance(client.receive(), m.Welcome):
                        return client
                    client.close()
            time.sleep(0.005)
        server.kill()


def test_a_long_state_directory_still_gets_a_socket(state, request):
    from_conftest = type(request.getfixturevalue("server"))
    other = type(state)(state.path.with_name("long" * 40))
    server = from_conftest(other, "--exit-when-idle-s", "60")
    try:
        server.start()
        link = parse_address(server.address).connect(60.0)
        link.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(timeout=DEADLINE_S) == 0
        assert not os.path.exists(server.address.removeprefix("unix:"))
    finally:
        server.kill()


def test_a_damaged_journal_is_not_started_from(server):
    server.kill()
    with server.state.journal.open("r+b") as file:
        file.write(b"\xff" * 8192)
    for suffix in ("-wal", "-shm"):
        server.state.journal.with_name("journal.db" + suffix).unlink(missing_ok=True)
    argv = [sys.executable, "-m", "keepstep.server", "--state-dir", str(server.state.path)]
    again = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert again.returncode == 1
    assert "journal.db" in again.stderr
    assert "empty one" in again.stderr


def test_address_words():
    assert str(parse_address("tcp:127.0.0.1:80")) == "tcp:127.0.0.1:80"
    assert str(parse_address("unix:/run/x.sock")) == "unix:/run/x.sock"
    for bad in ("", "tcp:", "tcp:host", "tcp:host:70000", "unix:", "http://x", "unix:" + "x" * 200):
        with pytest.raises(ValueError, match=r"address|longer"):
            parse_address(bad)
    with pytest.raises(OSError), socket.socket():
        parse_address("unix:/nonexistent/x.sock").connect(0.2)
