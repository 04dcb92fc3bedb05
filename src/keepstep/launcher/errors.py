"""The last error of a rank, put into a record of bounded size. Owns its classes and its signature; must not judge faults.

Runs in the rank, before the interpreter unwinds, and so must be quick and must not raise.
"""

import json
import re
import time
import traceback
from types import TracebackType

from keepstep.core.facts import ErrorRecord

MESSAGE_LIMIT_BYTES = 2 * 1024
TRACEBACK_LIMIT_BYTES = 16 * 1024
_SIGNATURE_FRAMES = 4

_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|cannot allocate memory", re.IGNORECASE)
_CUDA = re.compile(r"CUDA error|cuDNN error|CUBLAS_STATUS_|HIP error", re.IGNORECASE)
_NCCL = re.compile(r"\bNCCL\b|\bnccl[A-Z]\w+")
_PEER_GONE = re.compile(
    r"connection reset by peer|connection closed by peer|broken pipe|connection was (closed|reset)|"
    r"remote process (has )?exited|ncclRemoteError|application timeout caused pair closure|"
    r"socket (is )?closed|failed to recv, got 0 bytes",
    re.IGNORECASE,
)
_TIMED_OUT = re.compile(r"timed? ?out|timeout|watchdog caught collective", re.IGNORECASE)
_COLLECTIVE = re.compile(
    r"gloo|NCCL|nccl|TCPStore|c10d|DistNetworkError|DistStoreError|ProcessGroup|collective|barrier"
)
_MOVING_PARTS = re.compile(r"0x[0-9a-fA-F]+|\d+")


def describe(error: BaseException) -> ErrorRecord:
    """A record of ``error``, bounded by the limits above."""
    frames = traceback.extract_tb(user_traceback(error))
    message = _text(error)
    text = "".join(traceback.format_exception(type(error), error, user_traceback(error)))
    return ErrorRecord(
        kind=_kind(error, message),
        message=message,
        traceback=bounded(text, TRACEBACK_LIMIT_BYTES),
        signature=_signature(error, message, frames),
        victim=any(_is_victim(link) for link in _chain(error)),
    )


def user_traceback(error: BaseException) -> TracebackType | None:
    """The traceback from the first frame of the user's script on: how it would look without a launcher."""
    trace = error.__traceback__
    while trace is not None and _is_ours(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace if trace is not None else error.__traceback__


def bounded(text: str, limit_bytes: int) -> str:
    """At most ``limit_bytes`` of UTF-8; the middle goes, since both ends tell most."""
    data = text.encode("utf-8", "replace")
    if len(data) <= limit_bytes:
        return data.decode("utf-8")
    gap = f"\n… {len(data) - limit_bytes} bytes left out …\n".encode()
    keep = max(0, limit_bytes - len(gap))
    head, tail = data[: keep // 2], data[len(data) - (keep - keep // 2) :]
    return (head + gap + tail).decode("utf-8", "ignore")


def torchelastic_file(error: BaseException, record: ErrorRecord) -> bytes:
    """The error file as torchelastic's ``record`` writes it, so that tools which read it find what they know."""
    extra = {"py_callstack": record.traceback, "timestamp": str(int(time.time()))}
    message = f"{type(error).__name__}: {record.message}"
    return json.dumps({"message": {"message": message, "extraInfo": extra}}).encode()


def from_torchelastic_file(data: bytes) -> ErrorRecord | None:
    """What a script that writes its own error file (torchelastic's decorator) tells; None if it cannot be read."""
    try:
        inner = json.loads(data)["message"]
        text = str(inner["message"] if isinstance(inner, dict) else inner)
        stack = str(inner.get("extraInfo", {}).get("py_callstack", "")) if isinstance(inner, dict) else ""
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    kind, _, message = text.partition(": ")
    return ErrorRecord(
        kind=kind or "error",
        message=bounded(message, MESSAGE_LIMIT_BYTES),
        traceback=bounded(stack, TRACEBACK_LIMIT_BYTES),
        signature=f"{kind}:{_MOVING_PARTS.sub('#', message.splitlines()[0] if message else '')[:200]}",
        victim=_says_peer_gone(message),
    )


def _is_ours(path: str) -> bool:
    return path.startswith("<frozen runpy>") or path.endswith(
        ("keepstep/launcher/rank_main.py", "keepstep/launcher/zygote.py")
    )


def _text(error: BaseException) -> str:
    """Bounded at once: everything that follows searches it."""
    try:
        return bounded(str(error), MESSAGE_LIMIT_BYTES)
    except Exception as broken:  # noqa: BLE001 - the user's __str__ may raise anything
        return f"<message cannot be shown: {type(broken).__name__}>"


def _chain(error: BaseException) -> list[BaseException]:
    """``error`` and what it was raised from, as far as that was not suppressed."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links and len(links) < 16:
        links.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return links


def _kind(error: BaseException, message: str) -> str:
    name = type(error).__name__
    if isinstance(error, MemoryError) or name == "OutOfMemoryError" or _OUT_OF_MEMORY.search(message):
        return "out of memory"
    if _CUDA.search(message):
        return "CUDA error"
    if name == "DistBackendError" or _NCCL.search(message):
        return "NCCL"
    return name


def _is_victim(error: BaseException) -> bool:
    return isinstance(error, ConnectionResetError | BrokenPipeError) or _says_peer_gone(
        f"{type(error).__name__} {_text(error)}"
    )


def _says_peer_gone(text: str) -> bool:
    return bool(_PEER_GONE.search(text) or (_TIMED_OUT.search(text) and _COLLECTIVE.search(text)))


def _signature(error: BaseException, message: str, frames: traceback.StackSummary) -> str:
    where = "<".join(
        f"{frame.filename.rpartition('/')[2]}:{frame.name}" for frame in reversed(frames[-_SIGNATURE_FRAMES:])
    )
    first_line = message.splitlines()[0] if message else ""
    return f"{type(error).__name__}@{where}: {_MOVING_PARTS.sub('#', first_line)[:120]}"
