"""Those who wrap session keys: key files, and a command of the user's. Owns how they are asked, and what their answers mean.

Nothing here prints, logs or caches a key. Further providers (key services) implement ``port.Provider`` in modules of their own.
"""

import contextlib
import os
import re
import selectors
import signal
import stat
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import msgspec
from msgspec import Struct

from keepstep.checkpoint.errors import KeyMissing, KeyStale, KeyUnusable, WrongKey
from keepstep.checkpoint.keys.port import KEY_BYTES, Secret, Session, Wrapped
from keepstep.checkpoint.keys.sealing import fingerprint_of, unwrap, wrap

MAX_ANSWER_BYTES = 64 * 1024
_KEY_FILE = re.compile(r"([1-9][0-9]{0,8})\.(next|key|withdrawn)")
_VERSION = re.compile(r"([1-9][0-9]{0,8})#([0-9a-f]{16})")
_KEY_LIKE = re.compile(r"[0-9A-Fa-f]{64,}|(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{43}(?![A-Za-z0-9+/_-])=?")
"""32 bytes in hex or base64."""
_MAX_TOLD = 2000


class FileProvider:
    """Keys in a directory: ``<version>.<state>``, 32 random bytes each, readable by their owner alone.

    The state is ``key`` (in use; the highest version wraps), ``next`` (opens, and does not wrap yet) or ``withdrawn`` (its
    content, if any, is not read). A rename changes it, and is seen at once.
    """

    kind: ClassVar[str] = "file"

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = Path(directory)
        self.name = f"the key files in {self._directory}"

    def wrap(self, key: Secret, session: Session) -> Wrapped:
        states = self._states()
        usable = [version for version, state in states.items() if state == "key"]
        if not usable:
            found = ", ".join(f"{version}.{state}" for version, state in sorted(states.items())) or "no key file"
            raise (KeyStale if states else KeyMissing)(
                f"nothing to wrap a session key with: {self._directory} holds {found}. Put 32 random bytes into "
                f"{max(states, default=0) + 1}.key there, with mode 600"
            )
        version = max(usable)
        mine = self._load(version, "key")
        name = f"{version}#{fingerprint_of(mine)}"
        return Wrapped(provider=self.kind, key=name, data=wrap(mine, key, session.facts()))

    def unwrap(self, wrapped: Wrapped, session: Session) -> Secret:
        named = _VERSION.fullmatch(wrapped.key)
        if not named:
            raise WrongKey(f"{wrapped.key[:80]!r} is not the name of a key file: the key record was altered")
        version, fingerprint = int(named[1]), named[2]
        state = self._states().get(version)
        if state is None:
            raise KeyMissing(
                f"key {version} (fingerprint {fingerprint}), which wrapped session key {session.id}, is not in "
                f"{self._directory}. Copy {version}.key there from where it is kept"
            )
        if state == "withdrawn":
            raise KeyStale(
                f"key {version}, which wrapped session key {session.id}, was withdrawn: {self._directory} holds "
                f"{version}.withdrawn. If this may be opened still, let the owner of the keys put {version}.key back"
            )
        mine = self._load(version, state)
        if fingerprint_of(mine) != fingerprint:
            raise WrongKey(
                f"{self._directory / f'{version}.{state}'} has fingerprint {fingerprint_of(mine)}, and session key "
                f"{session.id} was wrapped with {fingerprint}: it is another key of that number. Put the right one there"
            )
        key = unwrap(mine, wrapped.data, session.facts())
        if key is None:
            raise WrongKey(
                f"what is recorded as session key {session.id} was not wrapped for it, or was altered. Restore "
                f"keys/{session.id}/ from a copy of the store"
            )
        return key

    def _states(self) -> dict[int, str]:
        """Version -> state. ``withdrawn`` wins over ``key``, and ``key`` over ``next``."""
        try:
            names = os.listdir(self._directory)
        except OSError as error:
            raise KeyMissing(
                f"cannot list {self._directory}: {error.strerror}. Name the directory that holds the key files"
            ) from None
        order = ("next", "key", "withdrawn")
        found = sorted((order.index(match[2]), match[1]) for name in names if (match := _KEY_FILE.fullmatch(name)))
        return {int(version): order[rank] for rank, version in found}

    def _load(self, version: int, state: str) -> Secret:
        path = self._directory / f"{version}.{state}"
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise KeyMissing(
                f"cannot read {path}: {error.strerror}. Give the user of this process access to it"
            ) from None
        with open(descriptor, "rb", buffering=0) as file:
            _check_private(os.fstat(descriptor), path)
            key = Secret(file.read(KEY_BYTES + 1))
        if len(key.reveal()) != KEY_BYTES or not any(key.reveal()):
            raise WrongKey(
                f"{path} is no key: it must be {KEY_BYTES} random bytes, not text and not zeros "
                f"(head -c {KEY_BYTES} /dev/urandom)"
            )
        return key


class CommandProvider:
    """A command of the user's that talks to a key service: one JSON document on its stdin, one on its stdout.

    ``command`` is a list of arguments; no shell sees it. Asked ``{"action": "wrap", "context": {...}, "plaintext": B64}`` it
    answers ``{"wrapped": B64, "key": NAME}``; asked ``{"action": "unwrap", "context": {...}, "wrapped": B64, "key": NAME}`` it
    answers ``{"plaintext": B64}``. Either may be ``{"error": "missing" | "stale" | "wrong", "message": TEXT}``. It should
    bind what it wraps to ``context``, a flat object of strings. After ``deadline_s`` it is killed, with its children.
    """

    kind: ClassVar[str] = "command"

    def __init__(self, command: Sequence[str], *, deadline_s: float = 20.0) -> None:
        if isinstance(command, str) or not command:
            raise ValueError(
                "the command is a list of arguments, such as ['/usr/local/bin/wrap-key', '--ring', 'training']"
            )
        self._command = list(command)
        self._deadline_s = deadline_s
        self.name = f"the command {self._command[0]}"

    def wrap(self, key: Secret, session: Session) -> Wrapped:
        request = Secret(msgspec.json.encode({"action": "wrap", "context": session.facts(), "plaintext": key.reveal()}))
        answer = self._ask(request, session)
        if not answer.wrapped or len(answer.wrapped) > MAX_ANSWER_BYTES // 4 or len(answer.key) > 1024:
            raise KeyMissing(
                f"{self.name} answered without a usable 'wrapped' (1 to {MAX_ANSWER_BYTES // 4} bytes, as base64) and 'key' "
                "(at most 1024 characters)"
            )
        if key.reveal() in answer.wrapped:
            raise WrongKey(
                f"{self.name} gave the session key back unencrypted. Correct the command; nothing was stored"
            )
        return Wrapped(provider=self.kind, key=answer.key, data=answer.wrapped)

    def unwrap(self, wrapped: Wrapped, session: Session) -> Secret:
        asked = {"action": "unwrap", "context": session.facts(), "wrapped": wrapped.data, "key": wrapped.key}
        answer = self._ask(Secret(msgspec.json.encode(asked)), session)
        if len(answer.plaintext) != KEY_BYTES:
            raise WrongKey(
                f"{self.name} unwrapped session key {session.id} to {len(answer.plaintext)} bytes, not {KEY_BYTES}: "
                "it is not a session key"
            )
        return Secret(answer.plaintext)

    def _ask(self, request: Secret, session: Session) -> "_Answer":
        status, output, complaint = self._exchange(request)
        answer: _Answer | None = None
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = msgspec.json.decode(output.reveal(), type=_Answer)
        if answer is not None and answer.error:
            raise _ERRORS.get(answer.error, KeyMissing)(
                f"{self.name} says of session key {session.id}: {_printable(answer.message) or answer.error}{complaint}"
            )
        if status:
            ended = f"exit status {status}" if status > 0 else f"signal {-status}"
            raise KeyMissing(f"{self.name} failed ({ended}) for session key {session.id}{complaint}")
        if answer is None:
            raise KeyMissing(f"{self.name} did not answer with the JSON document that is asked for{complaint}")
        return answer

    def _exchange(self, request: Secret) -> tuple[int, Secret, str]:
        """Exit status, stdout, and what it wrote to stderr in words. Nothing of it is left running."""
        ends_s = time.monotonic() + self._deadline_s
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
            )
        except OSError as error:
            raise KeyMissing(f"cannot start {self.name}: {error.strerror}. Install it, or correct its path") from None
        try:
            output, said, fault = _converse(process, request, ends_s)
            status = process.wait(max(0.0, ends_s - time.monotonic())) if not fault else 0
        except subprocess.TimeoutExpired:
            fault = "does not end"
        finally:
            _end(process)
        if fault:
            raise KeyMissing(
                f"{self.name} {fault}; it was killed after at most {self._deadline_s:g} s{_complaint(said)}. See whether "
                "the key service answers, then try again"
            )
        return status, output, _complaint(said)


class _Answer(Struct, frozen=True):
    wrapped: bytes = b""
    key: str = ""
    plaintext: bytes = b""
    error: str = ""
    message: str = ""

    def __repr__(self) -> str:
        return "<answer>"


_ERRORS: dict[str, type[KeyUnusable]] = {"missing": KeyMissing, "stale": KeyStale, "wrong": WrongKey}


def _check_private(status: os.stat_result, path: Path) -> None:
    """Who may read a key file: its owner; its group too where root owns it, which is how orchestrators mount secrets."""
    if not stat.S_ISREG(status.st_mode):
        raise WrongKey(f"{path} is not a regular file. Put a key file there")
    if status.st_uid not in (0, os.geteuid()):
        raise WrongKey(
            f"{path} belongs to user {status.st_uid}, who could change it: chown it to the user of this process"
        )
    allowed = 0o740 if status.st_uid == 0 else 0o700
    if status.st_mode & 0o777 & ~allowed:
        raise WrongKey(
            f"{path} has mode {status.st_mode & 0o777:o}, so others have access to the key: chmod 600 {path}"
        )


def _converse(process: "subprocess.Popen[bytes]", request: Secret, ends_s: float) -> tuple[Secret, bytes, str]:
    """Send the request, read both streams to their ends: stdout, stderr, and what went wrong. Raises nothing, so that no
    traceback shows what was read."""
    assert process.stdin and process.stdout and process.stderr
    os.set_blocking(process.stdin.fileno(), False)
    read: dict[int, bytearray] = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    sent, fault = 0, ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdin, selectors.EVENT_WRITE)
        for fd in read:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and not fault:
            events = selector.select(max(0.0, ends_s - time.monotonic()))
            fault = "" if events else "did not answer in time"
            for key, _ in events:
                if key.fileobj is process.stdin:
                    sent += _send(process.stdin.fileno(), request, sent)
                    if sent >= len(request.reveal()):
                        selector.unregister(process.stdin)
                        process.stdin.close()
                    continue
                data = os.read(key.fd, MAX_ANSWER_BYTES)
                read[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if len(read[key.fd]) > MAX_ANSWER_BYTES:
                    fault = f"said more than {MAX_ANSWER_BYTES} bytes"
    output, said = read.values()
    return Secret(bytes(output)), bytes(said), fault


def _send(fd: int, request: Secret, start: int) -> int:
    """Bytes taken; all that is left if nobody listens: why that is, the command says elsewhere."""
    try:
        return os.write(fd, request.reveal()[start:])
    except BrokenPipeError:
        return len(request.reveal()) - start


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Kill the command, with its children, unless it has ended by itself."""
    if process.returncode is None:
        # Not reaped yet, so its group's number is still its own. PermissionError: what is left is another user's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            stream.close()
    process.wait()


def _complaint(stderr: bytes) -> str:
    text = _printable(stderr.decode("utf-8", "replace"))
    return f". It said: {text}" if text else ""


def _printable(text: str) -> str:
    """Words for an error message: no control characters, nothing that looks like a key, the end if it is long."""
    shown = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return _KEY_LIKE.sub("[removed]", shown).strip()[-_MAX_TOLD:]
