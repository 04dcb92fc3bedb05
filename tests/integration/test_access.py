"""Identities against a real server process over TLS: joining, renewal, revocation, and what a stolen one is good for."""

import contextlib
import json
import os
import secrets
import select
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ports import lasting_port
from tests.server.conftest import ServerProcess
from typer.testing import CliRunner

from keepstep.adapters.database.opening import open_journal
from keepstep.adapters.pki.request import read_identity
from keepstep.adapters.server_link import tls
from keepstep.cli.app import add_late, app
from keepstep.core import facts as f
from keepstep.core.ids import NodeId, ResourceId, Session
from keepstep.server.state_dir import StateDir
from keepstep.wire import messages as m

DEADLINE_S = 120.0
add_late(("ca", "join", "token"))


class Installation:
    """A server that listens on a unix socket and on TLS, and commands against it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = StateDir(folder / "server")
        self.port = lasting_port()
        self.address = f"tls:127.0.0.1:{self.port}"
        # Commands here come by the unix socket that is always there.
        self.server = ServerProcess(self.state, "--listen", self.address).start()

    def keepstep(self, *words: object, code: int = 0, state: Path | None = None) -> str:
        """A command, in this process: these start none."""
        argv = [*map(str, words), "--state-dir", str(state or self.state.path)]
        done = CliRunner().invoke(app, argv, env=dict.fromkeys(os.environ.keys() - _environment().keys()))
        assert done.exit_code == code, (done.stdout, done.stderr, done.exception, self.state.log.read_text())
        return done.stdout if code == 0 else done.stderr

    def join_token(self, name: str, role: str = "agent", *more: object) -> str:
        return self.keepstep("token", "create", "--join", "--role", role, "--name", name, *more).strip()

    def join(self, name: str, role: str = "agent", *more: object) -> Path:
        """The state directory of a node that has joined."""
        node = self.folder / f"{role}-{name}-{secrets.token_hex(2)}"
        self.keepstep("join", self.address, self.join_token(name, role, *more), state=node)
        return node

    def records(self) -> list[object]:
        journal = open_journal(self.state.journal, read_only=True, patience_s=60.0)
        try:
            return [entry.record for entry in journal.read()]
        finally:
            journal.close()

    def told_of(self, who: str, what: str) -> bool:
        """Whether the journal has a refusal of that kind: soon after the answer, which need not wait for it."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            found = (record for record in self.records() if isinstance(record, f.RequestRefused))
            if any(who in refused.who and what in refused.what for refused in found):
                return True
            time.sleep(0.05)
        return False


class Node:
    """One connection over TLS, with the identity of a state directory (None: the authority's certificate alone)."""

    def __init__(self, installation: Installation, directory: Path | None, **hello: object) -> None:
        identity = directory / "identity" if directory is not None else installation.state.path / "ca"
        context = tls.client_context(str(identity))
        link = socket.create_connection(("127.0.0.1", installation.port), timeout=DEADLINE_S)
        self.link: ssl.SSLSocket = context.wrap_socket(link, server_hostname="127.0.0.1")
        self.send(m.Hello(**{"protocol": m.PROTOCOL, "session": Session(f"s-{secrets.token_hex(4)}")} | hello))
        self.first = self.receive()

    def send(self, message: m.Message) -> None:
        self.link.sendall(m.encode(message))

    def receive(self) -> m.Message:
        """Raises EOFError at the end of the connection."""
        return m.decode(self._read(int.from_bytes(self._read(4), "big")))

    def _read(self, size: int) -> bytes:
        got = b""
        while len(got) < size:
            try:
                chunk = self.link.recv(size - len(got))
            except (ssl.SSLError, ConnectionError) as error:
                raise EOFError(str(error)) from error
            if not chunk:
                raise EOFError
            got += chunk
        return got

    def is_cut_off(self) -> bool:
        ready, _, _ = select.select([self.link], [], [], DEADLINE_S)
        assert ready, "nothing happens"
        try:
            self.receive()
        except EOFError:
            return True
        return False

    def __enter__(self) -> "Node":
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("KEEPSTEP_")}


@pytest.fixture(scope="module")
def installation(tmp_path_factory) -> Iterator[Installation]:
    made = Installation(tmp_path_factory.mktemp("tls"))
    yield made
    made.server.kill()


@pytest.fixture(scope="module")
def n1(installation) -> Path:
    return installation.join("n1")


def joined(node: str, session: str) -> f.AgentJoined:
    return f.AgentJoined(node=NodeId(node), session=Session(session), boot_id="b")


def test_a_node_that_joined_is_let_in_as_itself(installation, n1):
    with Node(installation, n1, role="agent", node=NodeId("n1"), session=Session("first")) as node:
        assert isinstance(node.first, m.Welcome)
        assert 23 * 3600 < node.first.certificate_expires_in_s <= 24 * 3600
        node.send(m.Report(number=1, fact=joined("n1", "first")))
        assert node.receive() == m.Ack(number=1)
    assert joined("n1", "first") in installation.records()


def test_a_real_agent_needs_nothing_but_its_identity(installation):
    directory = installation.join("n7")
    config = directory / "agent.toml"
    config.write_text('[agent]\nsources = ["dependencies"]\n')
    argv = [sys.executable, "-m", "keepstep.cli", "agent", "--config", str(config), "--state-dir", str(directory),
            "--server", installation.address, "--node", "n7"]  # fmt: skip
    with (directory / "log").open("wb") as log:
        agent = subprocess.Popen(argv, stdout=log, stderr=log, env=_environment())
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not any(isinstance(r, f.AgentJoined) and r.node == "n7" for r in installation.records()):
            assert agent.poll() is None and time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.1)
    finally:
        agent.terminate()
        agent.wait(DEADLINE_S)


def test_a_token_that_was_used_buys_nothing_more_also_after_a_restart(installation):
    token = installation.join_token("n2")
    installation.keepstep("join", installation.address, token, state=installation.folder / "one")
    again = installation.folder / "two"
    assert "used up" in installation.keepstep("join", installation.address, token, state=again, code=1)
    installation.server.restart()
    assert "used up" in installation.keepstep("join", installation.address, token, state=again, code=1)
    assert not (again / "identity").exists()
    with Node(installation, installation.folder / "one", role="agent", node=NodeId("n2")) as node:
        assert isinstance(node.first, m.Welcome)
    assert installation.told_of("127.0.0.1", "Enrol")


@pytest.mark.parametrize(
    ("role", "node"), [("agent", "n9"), ("launcher", "n1"), ("front", "n1")], ids=["other node", "other role", "front"]
)
def test_a_stolen_certificate_is_no_other_node_and_no_other_role(installation, n1, role, node):
    with Node(installation, n1, role=role, node=NodeId(node), job="j") as thief:
        assert isinstance(thief.first, m.Refused)
        assert thief.is_cut_off()
    assert installation.told_of("127.0.0.1", f"Hello as {role}")


def test_a_stolen_certificate_says_nothing_of_another_node(installation, n1):
    with Node(installation, n1, role="agent", node=NodeId("n1"), session=Session("thief")) as thief:
        lie = f.SignalSeen(resource=ResourceId("node/n9"), signal="xid.79", session=Session("thief"))
        thief.send(m.Report(number=1, fact=lie))
        assert thief.is_cut_off()
    assert lie not in installation.records()
    assert installation.told_of("n1", "SignalSeen")


def test_a_node_asks_and_orders_nothing(installation, n1):
    with Node(installation, n1, role="tool") as thief:
        thief.send(m.Query(what="jobs"))
        assert thief.receive().kind == "Forbidden"
        thief.send(m.Query(what="tokens"))
        assert thief.receive().kind == "Forbidden"
        from keepstep.wire.requests import Hold

        thief.send(m.Act(request=Hold(resource="node/n1")))
        assert thief.receive().kind == "Forbidden"


def test_without_a_certificate_a_token_is_needed(installation):
    with Node(installation, None, role="agent", node=NodeId("n1")) as stranger:
        assert isinstance(stranger.first, m.Refused)
    secret = json.loads(installation.keepstep("token", "create", "--role", "viewer", "--name", "vera", "--json"))
    with Node(installation, None, role="tool", token=secret["token"]) as vera:
        assert isinstance(vera.first, m.Welcome)
        vera.send(m.Query(what="jobs"))
        assert vera.receive().ok
        vera.send(m.Query(what="tokens"))
        assert vera.receive().kind == "Forbidden"
        installation.keepstep("token", "revoke", secret["id"])
        assert vera.is_cut_off()
    with Node(installation, None, role="tool", token=secret["token"]) as vera:
        assert isinstance(vera.first, m.Refused)


def test_a_certificate_is_renewed_with_a_new_key(installation):
    directory = installation.join("n3")
    before = read_identity(directory / "identity")
    key = before.key.read_bytes()
    installation.keepstep("ca", "renew", "--server", installation.address, state=directory)
    after = read_identity(directory / "identity")
    assert (after.role, after.name) == ("agent", "n3")
    assert after.serial != before.serial
    assert after.key.read_bytes() != key
    with Node(installation, directory, role="agent", node=NodeId("n3")) as node:
        assert isinstance(node.first, m.Welcome)
    issued = [r for r in installation.records() if isinstance(r, f.CertificateIssued) and r.name == "n3"]
    assert [(one.serial, one.replaces) for one in issued] == [(before.serial, ""), (after.serial, before.serial)]


def test_revoking_a_node_cuts_it_off_and_keeps_it_out(installation):
    directory = installation.join("n4")
    with Node(installation, directory, role="agent", node=NodeId("n4")) as node:
        assert isinstance(node.first, m.Welcome)
        said = installation.keepstep("ca", "revoke", "n4", "--reason", "stolen")
        assert read_identity(directory / "identity").serial in said
        assert node.is_cut_off()
    with Node(installation, directory, role="agent", node=NodeId("n4")) as node:
        assert "revoked" in node.first.reason
    renewal = installation.keepstep("ca", "renew", "--server", installation.address, state=directory, code=1)
    assert "keepstep join" in renewal
    listed = json.loads(installation.keepstep("ca", "list", "--json"))["certificates"]
    (mine,) = [one for one in listed if one["name"] == "n4"]
    assert (mine["state"], mine["reason"]) == ("revoked", "stolen")


def test_a_launcher_of_a_tenant_submits_for_that_tenant_only(installation):
    directory = installation.join("n5", "launcher", "--tenant", "red")
    spec = f.JobSpec(argv=("t.py",), nproc_per_node=1, elasticity=f.Elasticity(min_nodes=1, max_nodes=1), tenant="blue")
    hello = {"role": "launcher", "node": NodeId("n5"), "job": "red-job"}
    with Node(installation, directory, **hello, session=Session("l5")) as node:
        assert isinstance(node.first, m.Welcome)
        node.send(m.Report(number=1, fact=f.JobSubmitted(job="red-job", spec=spec)))
        with contextlib.suppress(EOFError):
            while not isinstance(node.receive(), m.Ack):
                pass
    (submitted,) = [r for r in installation.records() if isinstance(r, f.JobSubmitted)]
    assert submitted.spec.tenant == "red"


def test_there_is_no_way_in_in_the_clear(installation):
    with socket.create_connection(("127.0.0.1", installation.port), timeout=DEADLINE_S) as link:
        link.sendall(m.encode(m.Hello(protocol=m.PROTOCOL, role="tool", token=installation.state.token())))
        got = b""
        with contextlib.suppress(ConnectionError):
            while chunk := link.recv(4096):
                got += chunk
    assert b"Welcome" not in got
    unix = installation.join_token("n6")
    assert "tls:" in installation.keepstep(
        "join", installation.server.address, unix, code=1, state=installation.folder / "x"
    )
