"""Real object store servers on loopback, one of each kind for all workers of a test run, as session fixtures."""

import base64
import contextlib
import fcntl
import hashlib
import hmac
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

START_S = 120.0
TRIES = 3
BIN = Path(sys.prefix) / "bin"
AZURITE = Path(sys.prefix) / "services" / "node_modules" / ".bin" / "azurite-blob"
AZURE_ACCOUNT = "devstoreaccount1"
# The one that the emulator's documentation gives to everybody.
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
S3_ENVIRONMENT = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testsecret", "AWS_REGION": "us-east-1"}
S3_IDENTITIES = {
    "identities": [
        {"name": "root", "credentials": [{"accessKey": "root", "secretKey": "rootsecret"}], "actions": ["Admin"]},
        {
            "name": "job",
            "credentials": [{"accessKey": "test", "secretKey": "testsecret"}],
            "actions": ["Read:ckpt", "Write:ckpt", "List:ckpt"],
        },
    ]
}


class Server(NamedTuple):
    """A running server with an empty bucket or container ``ckpt``."""

    kind: str
    endpoint: str
    environment: dict[str, str]

    def address(self, prefix: str, bucket: str = "ckpt") -> str:
        scheme = "az" if self.kind == "azurite" else "s3"
        return f"{scheme}://{bucket}/{prefix}?endpoint={self.endpoint}"


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    def command(ports: list[int], folder: Path) -> list[str]:
        (folder / "s3.json").write_text(json.dumps(S3_IDENTITIES))
        names = (
            "s3.port s3.port.grpc master.port master.port.grpc volume.port volume.port.grpc filer.port filer.port.grpc"
        )
        options = [f"-{name}={port}" for name, port in zip(names.split(), ports, strict=True)]
        options += ["-s3", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={folder / 's3.json'}", "-filer"]
        options += [f"-filer.localSocket={folder / 'filer.sock'}", "-master.telemetry=false", "-volume.max=0"]
        options += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={folder / 'data'}", "-master.volumeSizeLimitMB=64"]
        return [str(BIN / "weed"), "server", *options]

    with _shared(tmp_path_factory, "seaweedfs", command, 8, _make_s3_bucket) as endpoint:
        yield Server("seaweedfs", endpoint, S3_ENVIRONMENT)


@pytest.fixture(scope="session")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The bad one: it ignores If-None-Match."""
    with _shared(tmp_path_factory, "rclone", rclone_command, 1, lambda _: None) as endpoint:
        yield Server("rclone", endpoint, S3_ENVIRONMENT)


def rclone_command(ports: list[int], folder: Path) -> list[str]:
    (folder / "buckets" / "ckpt").mkdir(parents=True, exist_ok=True)
    options = ["--addr", f"127.0.0.1:{ports[0]}", "--auth-key", "test,testsecret", "--config", ""]
    return [str(BIN / "rclone"), "serve", "s3", *options, str(folder / "buckets")]


@pytest.fixture(scope="session")
def azurite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if not AZURITE.exists() or shutil.which("node") is None:
        pytest.skip("Azurite is not installed: it needs node and npm; `make services` gets it")

    def command(ports: list[int], folder: Path) -> list[str]:
        options = ["--silent", "--inMemoryPersistence", "--disableTelemetry", "--skipApiVersionCheck"]
        return [str(AZURITE), *options, "--blobHost", "127.0.0.1", "--blobPort", str(ports[0])]

    with _shared(tmp_path_factory, "azurite", command, 1, _make_azure_container) as endpoint:
        environment = {"AZURE_STORAGE_ACCOUNT_NAME": AZURE_ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": AZURE_KEY}
        yield Server("azurite", f"{endpoint}/{AZURE_ACCOUNT}", environment)


@contextlib.contextmanager
def _shared(
    factory: pytest.TempPathFactory,
    kind: str,
    command: Callable[[list[int], Path], list[str]],
    port_count: int,
    prepare: Callable[[str], None],
) -> Iterator[str]:
    """The endpoint of this run's server of a kind; whoever comes first starts it (see ``keep_server.py``)."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"server-{kind}"
    folder.mkdir(exist_ok=True)
    with open(folder / "users.lock", "ab") as users:
        with open(folder / "start.lock", "ab") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            if not (folder / "ready").exists():
                (folder / "ready").write_text(_start(folder, command, port_count, prepare))
        yield (folder / "ready").read_text()


def _start(
    folder: Path,
    command: Callable[[list[int], Path], list[str]],
    port_count: int,
    prepare: Callable[[str], None],
) -> str:
    for _ in range(TRIES):
        ports = free_ports(port_count)
        shutil.rmtree(folder / "data", ignore_errors=True)
        keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("keep_server.py")), str(folder), *command(ports, folder)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        endpoint = f"http://127.0.0.1:{ports[0]}"
        if answers(endpoint, keeper):
            prepare(endpoint)
            # It outlives this worker if another one uses the server.
            keeper.returncode = 0
            return endpoint
        keeper.kill()
        keeper.wait()
    log = (folder / "log").read_text(errors="replace")[-2000:] if (folder / "log").exists() else ""
    pytest.fail(f"{folder.name} does not start:\n{log}")


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def answers(endpoint: str, process: "subprocess.Popen[bytes]") -> bool:
    """Whether the server speaks HTTP, within START_S, and is through with starting (then it refuses the unsigned). False too
    once its process has ended."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if request(endpoint, "GET", "/", {})[0] in (400, 403):
                return True
        time.sleep(0.05)
    return False


def request(endpoint: str, method: str, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    url = urlsplit(endpoint)
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _make_s3_bucket(endpoint: str) -> None:
    from obstore.exceptions import BaseError, GenericError
    from obstore.store import S3Store

    # With "virtual hosts", the path of an object is the whole path: an object of this name is a bucket.
    options: Any = {"access_key_id": "root", "secret_access_key": "rootsecret", "client_options": {"allow_http": True}}
    root = S3Store("any", endpoint=endpoint, virtual_hosted_style_request=True, **options)
    bucket = S3Store("ckpt", endpoint=endpoint, **options)
    deadline = time.monotonic() + START_S
    while True:
        with contextlib.suppress(GenericError):
            # Made, although the answer lacks what the client expects of an object's.
            root.put("ckpt", b"", use_multipart=False)
        try:
            bucket.list().collect()
            return
        except BaseError:
            # It may not be through with starting.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _make_azure_container(endpoint: str) -> None:
    date, version = formatdate(usegmt=True), "2021-12-02"
    text = (
        "PUT"
        + "\n" * 12
        + f"x-ms-date:{date}\nx-ms-version:{version}\n/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/ckpt\nrestype:container"
    )
    signature = base64.b64encode(hmac.digest(base64.b64decode(AZURE_KEY), text.encode(), hashlib.sha256)).decode()
    headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {AZURE_ACCOUNT}:{signature}"}
    headers["Content-Length"] = "0"
    status, body = request(endpoint, "PUT", f"/{AZURE_ACCOUNT}/ckpt?restype=container", headers)
    assert status == 201, body
