"""One who knows the format, may write to the store, and has no key: alters an object and makes every digest above it right."""

import json
import random
from collections.abc import Callable
from typing import Any

import msgspec

from keepstep.checkpoint.format import pack as layout
from keepstep.checkpoint.format.records import LogRecord, Manifest, seal
from keepstep.checkpoint.repository.log import name_of
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.save import job_mark, manifest_key
from keepstep.checkpoint.state.blob import digest_of

from .shared_disk import JOB, Disk, View

Change = Callable[[Any], Any]
STRANGE: list[Any] = [
    None, True, -1, 0, 1, 7, 4096, 2**31, 2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 1e308, 0.5, "", "x",
    "../../etc/passwd", "/etc/passwd", "\u0000", "steps/x", "\ud7ff", "a" * 3000, "0" * 32, "f" * 64,
    "xxh3-" + "0" * 32, [], {}, [[]], [[[[[[[[]]]]]]]], {"a": {"b": {"c": 1}}}, [0] * 50, ["x", 1, None],
]  # fmt: skip


def alter(document: Any, source: random.Random) -> Any:
    """A JSON-like value with one place in it changed: replaced, removed, doubled, or mixed up."""
    document = json.loads(json.dumps(document))
    places: list[tuple[Any, Any]] = []
    _collect(document, places)
    if not places:
        return source.choice(STRANGE)
    holder, at = source.choice(places)
    match source.randrange(5):
        case 0 if isinstance(holder, dict):
            del holder[at]
        case 1 if isinstance(holder, list):
            holder.insert(at, holder[at])
        case 2 if isinstance(holder[at], int) and not isinstance(holder[at], bool):
            holder[at] += source.choice([-1, 1, 4096, -4096, 2**32])
        case 3:
            other, there = source.choice(places)
            holder[at] = json.loads(json.dumps(other[there]))
        case _:
            holder[at] = source.choice(STRANGE)
    return document


def _collect(value: Any, places: list[tuple[Any, Any]]) -> None:
    for at in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        places.append((value, at))
        _collect(value[at], places)


def enveloped(body: Any, kind: Any) -> bytes:
    """A document as it stands in a store, whatever is in it."""
    try:
        return seal(msgspec.convert(body, kind))
    except (msgspec.ValidationError, OverflowError, ValueError):
        pass
    raw = msgspec.json.Encoder(order="deterministic").encode(body)
    return msgspec.json.Encoder(order="deterministic").encode({"body": msgspec.Raw(raw), "digest": digest_of(raw)})


class Forger:
    """Works on the newest commit of a store."""

    def __init__(self, disk: Disk, job: str = JOB) -> None:
        self.disk, self.job = disk, job
        log = Repository(View(disk), job).log
        log.refresh()
        self.record = [record for record in log.records(job) if record.kind == "commit"][-1]
        self.later = [record for record in log.records(job) if record.seq > self.record.seq]
        self.name = manifest_key(self.record.folder, self.record.manifest)
        self.manifest = msgspec.to_builtins(_body(disk.objects[self.name]))

    def pack_keys(self) -> list[str]:
        return [entry["key"] for entry in self.manifest["packs"]]

    def put_record(self, body: Any, seq: int | None = None) -> None:
        """A commit record in place of the newest one, and the records after it chained to it."""
        at = self.record.seq if seq is None else seq
        self.disk.objects[name_of(at)] = enveloped(body, LogRecord)
        previous = digest_of(self.disk.objects[name_of(at)])
        for record in self.later:
            data = seal(msgspec.structs.replace(record, previous=previous))
            self.disk.objects[name_of(record.seq)] = data
            previous = digest_of(data)

    def put_manifest(self, body: Any) -> None:
        data = enveloped(body, Manifest)
        digest = digest_of(data)
        self.disk.objects[manifest_key(self.record.folder, digest)] = data
        record = msgspec.to_builtins(self.record)
        self.put_record(record | {"manifest": digest, "manifest_bytes": len(data)})

    def put_pack(self, key: str, footer: bytes, body: bytes | None = None, tag: bytes = b"") -> None:
        """A pack with another footer (and other chunks), described by the manifest as if it had been written so."""
        old = self.disk.objects[key]
        end = layout.read_trailer(old[-layout.TRAILER_BYTES :], len(old), key)
        body = old[: end.footer_offset] if body is None else body
        tail = bytearray(layout.end_bytes(len(footer)))
        tail[: len(footer)] = footer
        size = len(body) + len(tail)
        digest = layout.stored_digest(footer)
        tail[-layout.TRAILER_BYTES :] = layout.trailer(
            msgspec.structs.replace(
                end, footer_offset=len(body), footer_bytes=len(footer), size_bytes=size, footer=bytes.fromhex(digest),
                chunks=_count(footer, end.chunks), tag=tag or end.tag,
            )
        )  # fmt: skip
        self.disk.objects[key] = body + bytes(tail)
        for entry in self.manifest["packs"]:
            if entry["key"] == key:
                entry |= {"size_bytes": size, "footer": digest}
        self.put_manifest(self.manifest)

    def footer(self, key: str) -> tuple[bytes, Any]:
        """The stored footer of a pack, raw and parsed."""
        data = self.disk.objects[key]
        end = layout.read_trailer(data[-layout.TRAILER_BYTES :], len(data), key)
        raw = data[end.footer_offset : end.footer_offset + end.footer_bytes]
        return raw, json.loads(raw)


def _count(footer: bytes, otherwise: int) -> int:
    try:
        return len(json.loads(footer)["chunks"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return otherwise


def _body(data: bytes) -> Any:
    return msgspec.json.decode(data)["body"]


def forged_commit(disk: Disk, job: str, manifest: Manifest, **fields: Any) -> LogRecord:
    """Append a commit of ``manifest`` at the end of the log, as a process without any key would."""
    log = Repository(View(disk), job).log
    log.refresh()
    data = seal(manifest)
    folder = f"{manifest.step:08d}-g{manifest.generation}-{manifest.attempt}-{job_mark(job)}"
    disk.objects[manifest_key(folder, digest_of(data))] = data
    draft = LogRecord(
        seq=0, kind="commit", job=job, generation=manifest.generation, previous="", writer="", at_unix_s=0.0,
        step=manifest.step, attempt=manifest.attempt, world_size=manifest.world_size, folder=folder,
        manifest=digest_of(data), manifest_bytes=len(data), **fields,
    )  # fmt: skip
    return log.append(draft, lambda _: False)[0]
