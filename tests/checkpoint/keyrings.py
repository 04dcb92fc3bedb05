"""What the tests of keys share: a place with keys, stores that fail on purpose, and a look into tracebacks for secrets."""

import base64
import json
import os
import traceback
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from types import FrameType
from typing import Any

from keepstep.checkpoint.keys.port import Context
from keepstep.checkpoint.keys.providers import FileProvider
from keepstep.checkpoint.keys.sessions import Limits, SessionKeys
from keepstep.checkpoint.stores.posix import PosixStore

OWNER = ("acme", "gpt", 3)
"""Tenant, job and generation of ``context()``."""
PACK = "00112233445566778899aabbccddeeff"


def context(**changes: Any) -> Context:
    fields: dict[str, Any] = {"tenant": "acme", "job": "gpt", "generation": 3, "step": 100, "pack": PACK}
    return Context(**fields | changes)


def put_key(directory: Path, name: str, data: bytes | None = None, mode: int = 0o600) -> bytes:
    """A key file with random bytes, or with ``data``."""
    directory.mkdir(parents=True, exist_ok=True)
    key = os.urandom(32) if data is None else data
    (directory / name).write_bytes(key)
    (directory / name).chmod(mode)
    return key


def seal_one(sealer: Any, plain: bytes = b"weights", number: int = 0) -> tuple[bytes, bytes]:
    """Ciphertext and tag."""
    out = bytearray(len(plain))
    tag = sealer.seal(number, plain, memoryview(out))
    return bytes(out), tag


def open_one(sealer: Any, sealed: tuple[bytes, bytes], number: int = 0) -> bytes:
    out = bytearray(len(sealed[0]))
    sealer.open(number, sealed[0], sealed[1], memoryview(out))
    return bytes(out)


def forms_of(key: bytes) -> list[str]:
    """How a key might be printed."""
    return [key.hex(), base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode(), repr(key)[2:-1]]


def everything_shown(error: BaseException) -> str:
    """An exception and those it came from, with the local variables of their frames outside of the tests, as a debugger would
    print them. Hidden ones too."""
    shown: list[str] = []
    link: BaseException | None = error
    while link is not None:
        frames = [(frame, line) for frame, line in traceback.walk_tb(link.__traceback__) if not _is_test(frame)]
        assert frames
        shown += [repr(link), *traceback.StackSummary.extract(iter(frames), capture_locals=True).format()]
        link = link.__cause__ or link.__context__
    return "".join(shown)


def _is_test(frame: FrameType) -> bool:
    return Path(frame.f_code.co_filename).is_relative_to(Path(__file__).parent)


def nothing(_: str) -> None:
    """For a hook that is not used."""


class TroubledStore(PosixStore):
    """Calls hooks with the key before and after every create, and before a size is asked for; they may raise or wait."""

    def __init__(
        self,
        directory: Path,
        *,
        before_create: Callable[[str], None] = nothing,
        after_create: Callable[[str], None] = nothing,
        before_size: Callable[[str], None] = nothing,
    ) -> None:
        super().__init__(directory)
        self._before_create, self._after_create, self._before_size = before_create, after_create, before_size

    def create(self, key: str, data: Any) -> bool:
        self._before_create(key)
        done = super().create(key, data)
        self._after_create(key)
        return done

    def size(self, key: str) -> int | None:
        self._before_size(key)
        return super().size(key)


class Clock:
    """Wall clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


class Place:
    """A store and a key directory, and the keys of as many processes as are asked for."""

    def __init__(self, path: Path) -> None:
        self.store, self.directory = PosixStore(path / "store"), path / "keys"
        self.clock = Clock()
        put_key(self.directory, "1.key")

    def process(self, limits: Limits | None = None, store: Any = None, provider: Any = None) -> SessionKeys:
        return SessionKeys(store or self.store, [provider or FileProvider(self.directory)], limits, self.clock)

    def records(self, session: str) -> list[Path]:
        folder = self.store.path / "keys" / session
        return sorted(folder.iterdir()) if folder.exists() else []


def edit_record(place: Place, session: str, change: Callable[[dict[str, Any]], Any]) -> None:
    """Alter a record as one who knows the format, and not the key, would."""
    [path] = place.records(session)
    body = json.loads(path.read_text())["body"]
    change(body)
    raw = json.dumps(body, separators=(",", ":"), sort_keys=True)
    path.write_text(f'{{"body":{raw},"digest":"{blake2b(raw.encode(), digest_size=16).hexdigest()}"}}')
