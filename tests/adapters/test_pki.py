"""The authority and what it signs, in real TLS handshakes: who gets in, who does not, and what a join token pins."""

import contextlib
import os
import socket
import ssl
import stat
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from keepstep.adapters.pki.authority import AUTHORITY_LIFE_S, SERVER_LIFE_S, Authority, hosts_asked_for
from keepstep.adapters.pki.joining import join
from keepstep.adapters.pki.names import Subject, subject_of
from keepstep.adapters.pki.pinning import WrongServer, is_pinned, join_token, pin_of, split_join_token
from keepstep.adapters.pki.request import NoIdentity, life_s, new_key_and_request, read_identity, store_identity
from keepstep.adapters.server_link import tls

NOW_S = time.time()
DAY_S = 86400.0


@pytest.fixture(scope="module")
def authority(tmp_path_factory) -> Authority:
    return Authority.open(tmp_path_factory.mktemp("installation") / "ca")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> Authority:
    return Authority.open(tmp_path_factory.mktemp("elsewhere") / "ca")


def identity(authority: Authority, directory: Path, *, role="agent", name="n1", at_s=NOW_S, life_s=DAY_S) -> Path:
    key, request = new_key_and_request(name)
    signed = authority.sign(request, Subject(role=role, name=name), at_s, life_s)
    store_identity(directory, key, signed.certificate, authority.certificate_pem)
    return directory


class Door:
    """A TLS server that says which client it saw, one connection after another."""

    def __init__(self, authority: Authority, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), at_s=NOW_S) -> None:
        files = authority.server_identity(hosts, at_s)
        self._context = tls.server_context(str(files.certificate), str(files.key), str(files.authority))
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.seen: list[str | None] = []
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), link:
                link.settimeout(60.0)
                with self._context.wrap_socket(link, server_side=True) as shaken:
                    self.seen.append(tls.peer_serial(shaken.getpeercert()))
                    shaken.sendall(b"hello")

    def knock(self, directory: Path, host: str = "localhost") -> bytes:
        context = tls.client_context(str(directory))
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=60.0) as link,
            context.wrap_socket(link, server_hostname=host) as shaken,
        ):
            return shaken.recv(5)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(60.0)


@pytest.fixture(scope="module")
def door(authority):
    opened = Door(authority)
    yield opened
    opened.close()


# ---- the authority


def test_it_is_made_once_and_its_key_is_private(tmp_path):
    first = Authority.open(tmp_path / "ca")
    assert Authority.open(tmp_path / "ca").fingerprint == first.fingerprint
    assert stat.S_IMODE((tmp_path / "ca" / "authority.key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    assert first.not_after_s - time.time() == pytest.approx(AUTHORITY_LIFE_S, abs=600)
    assert not [name for name in os.listdir(tmp_path / "ca") if name.startswith(".")]


def test_a_death_between_key_and_certificate_is_mended(tmp_path):
    Authority.open(tmp_path / "ca")
    (tmp_path / "ca" / "authority.pem").unlink()
    again = Authority.open(tmp_path / "ca")
    assert again.certificate.public_key() == Authority.open(tmp_path / "ca").certificate.public_key()


def test_a_certificate_without_its_key_is_not_replaced_in_silence(tmp_path):
    Authority.open(tmp_path / "ca")
    (tmp_path / "ca" / "authority.key").unlink()
    with pytest.raises(ValueError, match="backup"):
        Authority.open(tmp_path / "ca")


def test_a_certificate_says_role_and_name_and_nothing_of_the_request(authority):
    _, request = new_key_and_request("i am the admin", ("server.example",))
    signed = authority.sign(request, Subject(role="agent", name="rack 1/n1"), NOW_S, DAY_S)
    made = x509.load_pem_x509_certificate(signed.certificate)
    assert subject_of(made) == Subject(role="agent", name="rack 1/n1")
    assert len(signed.serial) == 32
    assert made.not_valid_after_utc.timestamp() == pytest.approx(NOW_S + DAY_S, abs=2)
    assert hosts_asked_for(request) == ("server.example",)


def test_no_certificate_outlives_the_authority(authority):
    _, request = new_key_and_request("n1")
    signed = authority.sign(request, Subject(role="agent", name="n1"), NOW_S, 100 * AUTHORITY_LIFE_S)
    assert x509.load_pem_x509_certificate(signed.certificate).not_valid_after_utc.timestamp() == authority.not_after_s


def _altered() -> bytes:
    _, request = new_key_and_request("n1")
    return request[:-1] + bytes([request[-1] ^ 1])


def _rsa() -> bytes:
    key = rsa.generate_private_key(65537, 2048)
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    return request.public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    "request_of",
    [lambda: b"", lambda: b"\x30\x82" + b"x" * 40, _altered, _rsa],
    ids=["empty", "noise", "altered", "rsa"],
)
def test_a_request_that_is_not_sound_is_refused(authority, request_of):
    with pytest.raises(ValueError, match="request"):
        authority.sign(request_of(), Subject(role="agent", name="n1"), NOW_S, DAY_S)


def test_the_servers_own_certificate_is_kept_until_hosts_change_or_it_grows_old(tmp_path):
    authority = Authority.open(tmp_path / "ca")
    files = authority.server_identity(("a.example", "10.0.0.1"), NOW_S)
    first = files.certificate.read_bytes()
    assert set(subject_of(x509.load_pem_x509_certificate(first)).hosts) == {"a.example", "10.0.0.1"}
    assert authority.server_identity(("10.0.0.1",), NOW_S + 1).certificate.read_bytes() == first
    other = authority.server_identity(("b.example",), NOW_S).certificate.read_bytes()
    assert other != first
    assert authority.server_identity(("b.example",), NOW_S + 0.7 * SERVER_LIFE_S).certificate.read_bytes() != other
    files.certificate.write_bytes(b"torn")
    assert authority.server_identity(("b.example",), NOW_S).certificate.read_bytes().startswith(b"-----BEGIN")


# ---- identities on disk


def test_an_identity_is_replaced_as_a_whole(authority, tmp_path):
    directory = identity(authority, tmp_path / "identity", name="n1")
    first = read_identity(directory)
    assert (first.role, first.name) == ("agent", "n1")
    assert life_s(directory) == pytest.approx(DAY_S + 300, abs=5)
    identity(authority, directory, name="n2")
    assert read_identity(directory).name == "n2"
    assert not first.key.exists()
    assert stat.S_IMODE(read_identity(directory).key.stat().st_mode) == 0o600
    assert len([name for name in os.listdir(tmp_path) if name.startswith(".identity")]) == 1


def test_a_certificate_for_another_key_is_not_stored(authority, tmp_path):
    key, _ = new_key_and_request("n1")
    _, request = new_key_and_request("n1")
    signed = authority.sign(request, Subject(role="agent", name="n1"), NOW_S, DAY_S)
    with pytest.raises(ValueError, match="not for this key"):
        store_identity(tmp_path / "identity", key, signed.certificate, authority.certificate_pem)
    assert os.listdir(tmp_path) == []


def test_what_is_missing_or_torn_says_to_join(authority, tmp_path):
    with pytest.raises(NoIdentity, match="keepstep join"):
        read_identity(tmp_path / "identity")
    directory = identity(authority, tmp_path / "identity")
    (directory / "key.pem").write_bytes(b"torn")
    with pytest.raises(NoIdentity, match="keepstep join"):
        read_identity(directory)


# ---- handshakes


def test_a_node_gets_in_and_is_known_by_its_serial(authority, door, tmp_path):
    directory = identity(authority, tmp_path / "identity")
    assert door.knock(directory) == b"hello"
    assert door.seen[-1] == read_identity(directory).serial


def test_without_a_certificate_one_gets_in_and_is_nobody(authority, door, tmp_path):
    (tmp_path / "authority.pem").write_bytes(authority.certificate_pem)
    assert door.knock(tmp_path) == b"hello"
    assert door.seen[-1] is None


def _turned_away(door: Door, directory: Path, host: str = "localhost") -> bool:
    """In TLS 1.3 the client learns of it when it reads."""
    before = len(door.seen)
    with pytest.raises(OSError):
        assert door.knock(directory, host) == b"hello"
    return len(door.seen) == before


def test_a_certificate_of_another_authority_is_turned_away(authority, stranger, door, tmp_path):
    directory = identity(stranger, tmp_path / "identity")
    (directory.resolve() / "authority.pem").write_bytes(authority.certificate_pem)
    assert _turned_away(door, directory)


def test_an_expired_certificate_is_turned_away(authority, door, tmp_path):
    assert _turned_away(door, identity(authority, tmp_path / "identity", at_s=NOW_S - 2 * DAY_S))


def test_a_certificate_that_begins_later_is_turned_away(authority, door, tmp_path):
    assert _turned_away(door, identity(authority, tmp_path / "identity", at_s=NOW_S + DAY_S))


def test_a_server_of_another_authority_is_not_believed(authority, stranger, tmp_path):
    other = Door(stranger)
    try:
        with pytest.raises(ssl.SSLCertVerificationError):
            other.knock(identity(authority, tmp_path / "identity"))
    finally:
        other.close()


def test_a_server_is_believed_under_its_own_names_only(authority, door, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError):
        door.knock(identity(authority, tmp_path / "identity"), "other.example")


def test_a_node_cannot_pass_for_a_server(authority, tmp_path):
    """Its certificate is for clients, whatever name it carries: a stolen one opens no trap."""
    stolen = read_identity(identity(authority, tmp_path / "stolen", name="localhost"))
    context = tls.server_context(str(stolen.certificate), str(stolen.key), str(stolen.authority))
    here, there = socket.socketpair()
    with here, there:
        thread = threading.Thread(target=_shake_as_server, args=(context, there))
        thread.start()
        client = tls.client_context(str(identity(authority, tmp_path / "victim")))
        with pytest.raises(ssl.SSLCertVerificationError):
            client.wrap_socket(here, server_hostname="localhost")
        here.close()
        thread.join(60.0)


def _shake_as_server(context: ssl.SSLContext, link: socket.socket) -> None:
    with contextlib.suppress(OSError):
        context.wrap_socket(link, server_side=True).close()


# ---- join tokens


def test_a_join_token_carries_the_authoritys_key(authority, stranger):
    secret, pin = split_join_token(join_token("kst_a.b-c", pin_of(authority.certificate)))
    assert secret == "kst_a.b-c"
    assert is_pinned(authority.certificate, pin)
    assert not is_pinned(stranger.certificate, pin)


@pytest.mark.parametrize("text", ["", "kst_abc", "kst_abc.", "kst_abc.!!!", "kst_abc." + "A" * 44])
def test_what_is_no_join_token_says_so(text):
    with pytest.raises(ValueError, match="join token"):
        split_join_token(text)


def test_the_secret_is_not_told_to_another_authoritys_server(authority, stranger):
    other = Door(stranger)
    try:
        with pytest.raises(WrongServer, match="another authority"):
            join("127.0.0.1", other.port, join_token("kst_secret", pin_of(authority.certificate)), "n1")
        deadline_s = time.monotonic() + 60.0
        while not other.seen and time.monotonic() < deadline_s:
            time.sleep(0.01)  # it may see the end of the handshake a moment later than we do
        assert other.seen == [None]
    finally:
        other.close()


def test_the_secret_is_not_told_to_a_server_of_another_name(authority, tmp_path):
    other = Door(Authority.open(tmp_path / "ca"), hosts=("elsewhere.example",))
    try:
        pin = pin_of(Authority.open(tmp_path / "ca").certificate)
        with pytest.raises(ssl.SSLCertVerificationError):
            join("127.0.0.1", other.port, join_token("kst_secret", pin), "n1")
    finally:
        other.close()
