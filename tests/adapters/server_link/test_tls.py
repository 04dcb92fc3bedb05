"""TLS between links and servers: who is taken, what is said to whoever is not, and certificates that change under way."""

import asyncio
import os
import shutil
import socket
import ssl
import threading
import time
from pathlib import Path

import pytest
from tests.adapters.server_link.identities import Installation
from tests.adapters.server_link.servers import Owner, ScriptedServer, link_to, running, settled, until, word

from keepstep.adapters.pki.request import read_identity
from keepstep.adapters.server_link.address import Address
from keepstep.adapters.server_link.credentials import Credentials
from keepstep.adapters.server_link.link import ServerLink
from keepstep.adapters.server_link.tls import IdentityProblem, client_context, peer_serial, server_context
from keepstep.server.connection import Connection
from keepstep.wire.messages import Enrol, Hello, Message, Refused, Welcome, encode


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    return Installation(tmp_path_factory.mktemp("installation"))


def context_of(installation: Installation, *hosts: str, now_s: float | None = None) -> ssl.SSLContext:
    files = installation.server(*hosts, now_s=now_s)
    return server_context(str(files.certificate), str(files.key), str(files.authority))


def trouble(identity_dir: str, context: ssl.SSLContext, name: str = "") -> str:
    """What a link says that cannot connect."""
    server, owner = ScriptedServer(), Owner()

    async def make() -> ServerLink:
        await server.start(context=context)
        address = server.address if not name else Address("tls", host=name, port=server.address.port)
        return link_to([address], owner, identity_dir=identity_dir, token="")

    async def scene(link: ServerLink) -> None:
        await until(lambda: told(), "trouble")
        assert not link.is_up and server.journal == []

    def told() -> list[str]:
        """But for a handshake that a machine under load was too slow for; it is tried again."""
        return [problem for problem in owner.problems if "TimeoutError" not in problem]

    running(scene, make)
    return told()[0]


def test_a_node_with_a_certificate_reports_and_says_no_secret(installation: Installation) -> None:
    server, owner, identity = ScriptedServer(), Owner(), installation.node("n1")

    async def make() -> ServerLink:
        await server.start(context=context_of(installation))
        return link_to([server.address], owner, identity_dir=identity, token="")

    async def scene(link: ServerLink) -> None:
        link.report(word(1))
        assert await link.drained(60.0)
        assert server.writers[0].get_extra_info("cipher")[1] == "TLSv1.3"

    running(scene, make)
    assert server.hellos[0].token == ""
    assert peer_serial({"serialNumber": server.serials[0]}) == installation.serials[-1]


def test_without_an_identity_one_is_told_how_to_get_one(installation: Installation, tmp_path: Path) -> None:
    assert "keepstep join" in trouble(str(tmp_path / "none"), context_of(installation))


def test_a_server_of_another_authority_is_not_taken(installation: Installation, tmp_path: Path) -> None:
    other = Installation(tmp_path)
    said = trouble(other.node(), context_of(installation))
    assert "not signed by the authority" in said and "keepstep join" in said


def test_a_node_of_another_authority_is_told_so(installation: Installation, tmp_path: Path) -> None:
    """It trusts the server, but its own certificate is of somewhere else."""
    other = Installation(tmp_path)
    mixed = Path(other.node("mixed")).resolve()
    (mixed / "authority.pem").write_bytes(installation.authority.certificate_pem)
    assert "of another authority than its own" in trouble(str(mixed), context_of(installation))


def test_an_expired_certificate_is_told_on_both_sides(installation: Installation, tmp_path: Path) -> None:
    old = installation.node("old", life_s=60.0, now_s=time.time() - 3600.0)
    assert "has expired; get a new one" in trouble(old, context_of(installation))
    other = Installation(tmp_path)
    said = trouble(other.node(), context_of(other, now_s=time.time() - 200 * 86400.0))
    assert "the server's certificate has expired" in said


def test_a_server_must_have_the_name_that_was_dialled(installation: Installation) -> None:
    assert "127.0.0.1" in trouble(installation.node("n2"), context_of(installation), name="127.0.0.1")


def test_a_server_without_tls_is_told_from_one_with(installation: Installation) -> None:
    async def make() -> ServerLink:
        await server.start()
        address = Address("tls", host="127.0.0.1", port=server.address.port)
        return link_to([address], owner, identity_dir=identity)

    async def scene(link: ServerLink) -> None:
        await until(lambda: owner.problems, "trouble")

    server, owner, identity = ScriptedServer(), Owner(), installation.node("n3")
    running(scene, make)
    assert server.hellos == []


def test_older_tls_is_refused(installation: Installation) -> None:
    context = context_of(installation)
    old = client_context(installation.node("n4"))
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = old.wrap_bio(there, here, server_hostname="localhost")
    server = context.wrap_bio(here, there, server_side=True)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    with pytest.raises(ssl.SSLError, match=r"(?i)version|protocol"):
        server.do_handshake()


def test_files_that_do_not_fit_are_told(installation: Installation, tmp_path: Path) -> None:
    broken = Path(installation.node("broken")).resolve()
    (broken / "key.pem").write_bytes((Path(installation.node("other")).resolve() / "key.pem").read_bytes())
    with pytest.raises(IdentityProblem, match="keepstep join"):
        client_context(str(broken))


# ---- certificates that change


def serials_shown(context: ssl.SSLContext, of_client: ssl.SSLContext) -> tuple[str | None, str | None]:
    """By the server, and by the client."""
    here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = of_client.wrap_bio(there, here, server_hostname="localhost")
    server = context.wrap_bio(here, there, server_side=True)
    for side in (client, server, client, server):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return peer_serial(client.getpeercert()), peer_serial(server.getpeercert())


def serial_shown(context: ssl.SSLContext, identity_dir: str) -> str | None:
    return serials_shown(context, client_context(identity_dir))[0]


def test_a_servers_new_certificate_is_shown_from_the_next_connection_on(tmp_path: Path) -> None:
    installation = Installation(tmp_path)
    node = installation.node()
    files = installation.server()
    context = server_context(str(files.certificate), str(files.key), str(files.authority))
    first = serial_shown(context, node)
    files.certificate.write_bytes(b"half written")
    assert serial_shown(context, node) == first, "files that do not fit yet change nothing"
    files.certificate.unlink()
    assert serial_shown(context, node) == first
    installation.server()
    second = serial_shown(context, node)
    assert first and second and first != second


def test_a_node_renews_its_certificate_while_connected_and_shows_the_new_one_next(tmp_path: Path) -> None:
    """Its life is 900 s; the server says that 300 s are left, which is when it is due."""
    installation, owner = Installation(tmp_path), Owner()
    identity = installation.node(life_s=900.0)
    server = ScriptedServer(expires_in_s=300.0, enrol=installation.enrol(3600.0))

    async def make() -> ServerLink:
        await server.start(context=context_of(installation))
        return link_to([server.address], owner, identity_dir=identity, token="")

    async def scene(link: ServerLink) -> None:
        link.report(word(1))
        await until(lambda: len(installation.serials) == 2, "the renewal")
        await until(lambda: read_identity(identity).serial == installation.serials[1], "its end")
        assert link.is_up, "the connection itself goes on"
        await server.stop()
        server.expires_in_s = 3600.0
        await server.start(context=context_of(installation))
        await until(lambda: len(server.hellos) == 2, "the next connection")

    running(scene, make)
    shown = [peer_serial({"serialNumber": serial}) for serial in server.serials]
    assert shown == [installation.serials[0], installation.serials[0], installation.serials[1]]


@pytest.mark.parametrize("torn", ["authority.pem", "certificate.pem"])
def test_an_identity_that_is_replaced_while_it_is_read_is_read_anew(tmp_path: Path, torn: str) -> None:
    """As a node's own renewal does beside whatever dials then: what was there before is gone at once."""
    installation = Installation(tmp_path)
    identity = Path(installation.node())
    old = identity.resolve()
    was = (old / torn).read_bytes()
    (old / torn).unlink()
    os.mkfifo(old / torn)

    def replace() -> None:
        with (old / torn).open("wb") as held:  # once it is being read
            shutil.rmtree(old)
            installation.node()
            held.write(was)

    thread = threading.Thread(target=replace)
    thread.start()
    if torn == "certificate.pem":
        assert read_identity(identity).serial == installation.serials[-1]
    else:
        of_client = client_context(str(identity))
        assert serials_shown(context_of(installation), of_client)[1] == installation.serials[-1]
    thread.join(60.0)


def test_a_renewal_that_is_refused_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    installation, owner = Installation(tmp_path), Owner()
    identity = installation.node(life_s=900.0)
    asked: list[Enrol] = []

    def enrol(message: Enrol) -> Message:
        asked.append(message)
        return Refused(reason="not today") if len(asked) == 1 else installation.enrol(3600.0)(message)

    server = ScriptedServer(expires_in_s=1.0, enrol=enrol)

    async def make() -> ServerLink:
        await server.start(context=context_of(installation))
        return link_to([server.address], owner, identity_dir=identity, token="")

    async def scene(link: ServerLink) -> None:
        await until(lambda: "not today" in caplog.text, "the refusal")
        assert link.is_up

    running(scene, make)
    assert asked and installation.serials == installation.serials[:1]


# ---- the server's side of a connection


class Desk:
    """Meets server.connection.Hub."""

    def __init__(self) -> None:
        self.seen: list[tuple[bool, str | None, str]] = []
        self.heard: list[Message] = []

    def accept(self, connection: Connection, hello: Hello) -> Message:
        self.seen.append((connection.encrypted, connection.peer_serial, connection.peer))
        return Welcome(protocol=2, server="x")

    def enrol(self, connection: Connection, message: Enrol) -> None:
        self.seen.append((connection.encrypted, connection.peer_serial, "enrol"))
        connection.send(Refused(reason="heard"))

    def received(self, connection: Connection, message: Message) -> None:
        self.heard.append(message)

    def closed(self, connection: Connection) -> None:
        self.heard.append(Refused(reason="closed"))


def test_the_hub_is_told_which_certificate_a_client_showed(installation: Installation) -> None:
    desk, owner, identity = Desk(), Owner(), installation.node("n5")
    serial = installation.serials[-1]

    async def play() -> None:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(lambda: Connection(desk), "127.0.0.1", 0, ssl=context_of(installation))
        port = listening.sockets[0].getsockname()[1]
        known = [Address("tls", host="localhost", port=port), Address("tls", host="localhost", port=1)]
        link = link_to(known, owner, identity_dir=identity, token="t", lease_s=1.5)
        life = asyncio.ensure_future(link.run())
        await until(lambda: link.is_up, "the server")
        link.report(word(7))
        await until(lambda: desk.heard, "the report")
        await asyncio.sleep(2.0)
        assert link.is_up, "the server's connection answers when it is asked whether it is there"
        life.cancel()
        await asyncio.gather(life, return_exceptions=True)
        await until(lambda: len(desk.heard) == 2, "the end")
        await asyncio.to_thread(_enrol_as_a_stranger, port, installation.stranger())
        listening.close()
        await settled()

    asyncio.run(play())
    assert [encrypted for encrypted, _, _ in desk.seen] == [True, True]
    assert [shown for _, shown, _ in desk.seen] == [serial, None]
    assert desk.seen[0][2].startswith("127.0.0.1:")


def _enrol_as_a_stranger(port: int, identity_dir: str) -> None:
    plain = socket.create_connection(("127.0.0.1", port))
    with client_context(identity_dir).wrap_socket(plain, server_hostname="localhost") as link:
        link.sendall(encode(Enrol(request=b"")))
        assert link.recv(1024)


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_a_secret_stays_at_home_where_a_certificate_speaks(
    installation: Installation, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "token").write_text("owner's\n")
    address = Address("tls" if kind == "tls" else "tcp", host="localhost", port=1)
    own = Credentials.of(str(tmp_path), {"KEEPSTEP_IDENTITY_DIR": installation.node(f"c-{kind}")})
    assert own.token_for(address) == ("" if kind == "tls" else "owner's")
    assert own.secret_of_peers() == "owner's"
    stranger = Credentials.of(str(tmp_path), {"KEEPSTEP_IDENTITY_DIR": installation.stranger(f"s-{kind}")})
    assert stranger.token_for(address) == "owner's"
    given = Credentials.of(str(tmp_path), {"KEEPSTEP_SERVER_TOKEN": "given", "KEEPSTEP_PEER_SECRET": "peers"})
    assert given.token_for(address) == "given" and given.secret_of_peers() == "peers"
    joined = Credentials.of(str(tmp_path / "elsewhere"), {"KEEPSTEP_IDENTITY_DIR": own.identity_dir})
    assert joined.secret_of_peers() is None
    with pytest.raises(FileNotFoundError):
        Credentials.of(str(tmp_path / "elsewhere"), {}).secret_of_peers()


def test_a_server_machine_without_an_identity_trusts_its_own_authority(
    installation: Installation, tmp_path: Path
) -> None:
    files = installation.server("localhost")
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "authority.pem").write_bytes(files.authority.read_bytes())
    context = client_context(str(tmp_path / "identity"))
    assert len(context.get_ca_certs()) == 1
    with pytest.raises(IdentityProblem, match="keepstep join"):
        client_context(str(tmp_path / "elsewhere" / "identity"))
