"""What can go wrong between us and an object store: refusals, deaths, silence. Each an OSError with words, and none a hang."""

import contextlib
import errno
import re
import secrets
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keepstep.checkpoint.stores.address import Limits, open_store
from keepstep.checkpoint.stores.objects import MAX_PARTS, PART_BYTES, part_bytes_for
from keepstep.checkpoint.stores.port import Store

from .servers import S3_ENVIRONMENT, TRIES, Server, answers, free_ports, rclone_command

MEBIBYTE = 1024 * 1024
FOUND = b'HTTP/1.1 200 OK\r\nContent-Length: 2\r\nETag: "1"\r\nLast-Modified: Sun, 29 Nov 2026 12:00:00 GMT\r\n\r\n'
SHORT = Limits(connect_s=60.0, request_s=0.5, patience_s=1.0, retries=1)
"""For servers that never answer; to connect is another matter."""
PATIENT = Limits(connect_s=120.0, request_s=120.0, patience_s=120.0, retries=1)
"""For those that answer or are not there, however slow the machine."""


def every_call(store: Store) -> list[Callable[[], object]]:
    def upload() -> None:
        with store.writer("k", 20 * MEBIBYTE) as writer:
            writer.write(bytes(20 * MEBIBYTE))
            writer.finish()

    return [
        lambda: store.create("k", b"x"),
        lambda: store.read("k"),
        lambda: store.read_into("k", 0, memoryview(bytearray(3))),
        lambda: store.size("k"),
        lambda: list(store.list("")),
        lambda: store.delete("k"),
        lambda: store.hint("k", b"x"),
        upload,
    ]


def failures(store: Store) -> list[OSError]:
    found = []
    for call in every_call(store):
        with pytest.raises(OSError) as caught:
            call()
        found.append(caught.value)
    return found


@contextlib.contextmanager
def deaf() -> Iterator[str]:
    """An endpoint at which nobody listens, and nobody else can begin to."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


@pytest.fixture(params=["seaweedfs", "azurite", "rclone"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


def test_wrong_credentials_are_called_that(server: Server, open_on: Callable[..., Store]) -> None:
    # Also a valid base64 key, as Azure wants it.
    secret = "d3JvbmdzZWNyZXQ="
    environment = {
        name: secret if name.endswith(("SECRET_ACCESS_KEY", "ACCOUNT_KEY")) else value
        for name, value in server.environment.items()
    }
    for error in failures(open_on(server._replace(environment=environment), "x")):
        assert isinstance(error, PermissionError)
        assert re.search("access is refused: check (AWS_ACCESS_KEY_ID|AZURE_STORAGE_ACCOUNT_KEY)", str(error))
        assert secret not in str(error)


@pytest.mark.parametrize("server", ["azurite", "rclone"], indirect=True)
def test_a_bucket_that_does_not_exist_is_not_an_empty_one(server: Server, open_on: Callable[..., Store]) -> None:
    for error in failures(open_on(server, "x", bucket="nowhere")):
        assert error.errno == errno.ENODEV
        assert re.search(r"there is no such (bucket|container): create it, or correct the address", str(error))


def test_another_bucket_than_the_job_may_use(seaweedfs: Server, open_on: Callable[..., Store]) -> None:
    assert {type(error) for error in failures(open_on(seaweedfs, "x", bucket="nowhere"))} == {PermissionError}


def test_no_credentials_at_all(seaweedfs: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    # Where a machine's role would be asked for; nobody is there.
    with deaf() as nobody:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", nobody)
        store = open_store(seaweedfs.address("x"), PATIENT)
        with pytest.raises(PermissionError, match="there are no credentials: set AWS_ACCESS_KEY_ID"):
            store.read("k")


@pytest.mark.parametrize(
    ("name", "value", "address"),
    [
        ("AWS_ACCESS_KEY_ID", "without its secret", "s3://ckpt"),
        ("AZURE_STORAGE_ACCOUNT_KEY", "not base64!", "az://ckpt?account=me"),
        ("GOOGLE_SERVICE_ACCOUNT", "/no/such/file", "gs://ckpt"),
    ],
)
def test_an_environment_that_cannot_be_right(
    name: str, value: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(OSError, match="correct or unset the environment variable") as caught:
        open_store(address)
    assert caught.value.errno == errno.EINVAL


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with deaf() as nobody:
        for error in failures(open_store(f"s3://ckpt/x?endpoint={nobody}", PATIENT)):
            assert error.errno == errno.EHOSTUNREACH
            assert "cannot be reached: check the endpoint" in str(error)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Endpoint of a server that takes connections and never says a word."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


def test_silence_is_a_timeout_not_a_hang(silent: str) -> None:
    store = open_store(f"s3://ckpt/x?endpoint={silent}", SHORT)
    calls, found = every_call(store), []

    def call(act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            found.append(error)

    threads = [threading.Thread(target=call, args=(act,)) for act in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in found] == [TimeoutError] * len(calls)
    assert all("no answer in time" in str(error) for error in found)


def test_a_buffer_is_free_after_a_timeout(silent: str) -> None:
    store = open_store(f"s3://ckpt/x?endpoint={silent}", SHORT)
    buffer = bytearray(4 * MEBIBYTE)
    with pytest.raises(TimeoutError):
        store.create("k", buffer)
    buffer.clear()


def test_a_signature_in_the_environment_is_never_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "someone")
    monkeypatch.setenv("AZURE_STORAGE_SAS_KEY", "sv=2021-12-02&sig=verysecretsignature")
    with deaf() as nobody, pytest.raises(OSError) as caught:
        open_store(f"az://ckpt/x?endpoint={nobody}", PATIENT).read("k")
    assert "verysecret" not in "".join(traceback.format_exception(caught.value))


def start_rclone(folder: Path) -> tuple["subprocess.Popen[bytes]", str]:
    """A server of its own. Its port is free when it is chosen, and may be somebody else's a moment later."""
    for _ in range(TRIES):
        ports = free_ports(1)
        endpoint = f"http://127.0.0.1:{ports[0]}"
        with open(folder / "log", "wb") as log:
            server = subprocess.Popen(rclone_command(ports, folder), cwd=folder, stdout=log, stderr=log)
        if answers(endpoint, server):
            return server, endpoint
        server.kill()
        server.wait()
    raise AssertionError((folder / "log").read_text(errors="replace")[-2000:])


def test_a_server_killed_in_the_middle_of_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    server, endpoint = start_rclone(tmp_path)
    try:
        store = open_store(f"s3://ckpt/x?endpoint={endpoint}", PATIENT)
        writer = store.writer("packs/a", 64 * MEBIBYTE)
        writer.write(bytes(16 * MEBIBYTE))
        server.kill()
        server.wait()
        with pytest.raises(OSError, match="server"):
            for _ in range(16):
                writer.write(bytes(4 * MEBIBYTE))
            writer.finish()
        # What failed once cannot be completed with a part missing.
        with pytest.raises(OSError, match="begin a new one"):
            writer.finish()
        with pytest.raises(OSError, match="begin a new one"):
            writer.write(b"")
    finally:
        server.kill()
        server.wait()


def test_ended_connections_leave_a_create_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request may have been carried out: neither True nor False, and not sent again."""
    with scripted(monkeypatch, [b""] * 8) as (store, requests), pytest.raises(OSError, match="is open: read it back"):
        store.create("k", b"x")
    assert len(requests) == 1


def test_a_server_error_leaves_a_create_open(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
    with (
        scripted(monkeypatch, [answer] * 8) as (store, requests),
        pytest.raises(OSError, match="is open: read it back"),
    ):
        store.create("k", b"x")
    assert len(requests) == 1
    assert b"if-none-match: *" in requests[0].lower()


def test_reads_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"
    with scripted(monkeypatch, [bad, bad, FOUND + b"hi"]) as (store, requests):
        assert store.read("k") == b"hi"
    assert len(requests) == 3


def test_a_conflict_elsewhere_is_an_error_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock on the object, say."""
    conflict = b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n"
    with scripted(monkeypatch, [conflict] * 8) as (store, _), pytest.raises(OSError, match="is in the way"):
        store.delete("k")


def test_a_conflict_that_nobody_won_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 answers 409 to a create that met a delete: "taken" would be a lie."""
    conflict = b"HTTP/1.1 409 Conflict\r\nContent-Length: 0\r\n\r\n"
    absent = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
    with scripted(monkeypatch, [conflict, absent, absent]) as (store, _), pytest.raises(OSError, match="try again"):
        store.create("k", b"x")


def test_the_endpoint_of_the_address_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client by itself would prefer AWS_ENDPOINT_URL_S3, and read from another service than the address says."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_BUCKET", "other")
    with scripted(monkeypatch, [FOUND + b"hi"]) as (store, requests):
        assert store.read("k") == b"hi"
    assert requests[0].startswith(b"GET /ckpt/x/k HTTP/1.1")


def test_an_object_of_absurd_size_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    huge = FOUND.replace(b"Length: 2", b"Length: 99999999999")
    with scripted(monkeypatch, [huge]) as (store, _), pytest.raises(OSError, match="too many to read at once"):
        store.read("k")


def test_google_is_asked_for_generation_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its way to say "if absent". No Google server runs here; this is what would be sent to it."""
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")
    taken = b"HTTP/1.1 412 Precondition Failed\r\nContent-Length: 0\r\n\r\n"
    with scripted(monkeypatch, [taken, FOUND], scheme="gs") as (store, requests):
        assert store.create("k", b"x") is False
    assert requests[0].startswith(b"PUT /ckpt/x%2Fk HTTP/1.1")
    assert b"x-goog-if-generation-match: 0" in requests[0].lower()


def test_parts_grow_with_the_object() -> None:
    assert part_bytes_for(0) == part_bytes_for(PART_BYTES * MAX_PARTS) == PART_BYTES
    for size in (PART_BYTES * MAX_PARTS + 1, 10**12, 4 * 10**12):
        assert size <= part_bytes_for(size) * MAX_PARTS < size + MAX_PARTS * MEBIBYTE


class scripted:
    """A store on a server that gives these answers in turn, one a connection, and what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, replies: list[bytes], scheme: str = "s3") -> None:
        for name, value in S3_ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        self._scheme, self._replies, self._requests = scheme, replies, list[bytes]()

    def __enter__(self) -> tuple[Store, list[bytes]]:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        endpoint = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        limits = Limits(connect_s=120.0, request_s=120.0, patience_s=120.0, retries=4)
        return open_store(f"{self._scheme}://ckpt/x?endpoint={endpoint}", limits), self._requests

    def _serve(self) -> None:
        for reply in self._replies:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection:
                self._requests.append(self._receive(connection))
                connection.sendall(reply.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))

    def _receive(self, connection: socket.socket) -> bytes:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := connection.recv(65536)):
                return data
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        while length and len(body) < int(length[1]):
            body += connection.recv(65536)
        return head

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


def test_two_stores_of_one_bucket_are_two(seaweedfs: Server, open_on: Callable[..., Store]) -> None:
    mark = secrets.token_hex(4)
    one, other = open_on(seaweedfs, f"{mark}/one"), open_on(seaweedfs, f"{mark}/other")
    assert one.create("k", b"1")
    assert other.create("k", b"2")
    assert [entry.key for entry in open_on(seaweedfs, mark).list("")] == ["one/k", "other/k"]
    assert one.name != other.name
