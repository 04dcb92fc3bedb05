"""The format's page is enough to write a checkpoint: this file does so by the page alone, and keepstep reads it.

The test vectors in the page are what comes out here.
"""

import json
import re
import struct
from pathlib import Path

import numpy as np
import xxhash
from blake3 import blake3

from keepstep.checkpoint import flatten
from keepstep.checkpoint.format.records import LogRecord, PackEntry, seal, unseal
from keepstep.checkpoint.repository.pack_reader import PackReader
from keepstep.checkpoint.state.blob import pack, unpack
from keepstep.checkpoint.stores.posix import PosixStore

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "checkpoint-format.md"
PACK_ID = bytes(range(16))
PAGE_BYTES = 4096


def filled(data: bytes) -> bytes:
    return data.ljust(-(-len(data) // PAGE_BYTES) * PAGE_BYTES, b"\0")


def compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def blob_by_the_page() -> bytes:
    payload = filled(struct.pack("<3f", 0, 1, 2))
    index = compact({"format": 1, "tree": {"step": 7, "w": ["a", 0]}, "leaves": [["n", "<f4", [3]]]})
    return (
        payload
        + index
        + struct.pack("<Q", len(payload))
        + struct.pack("<QQQ", len(payload), len(index), 1)
        + b"KSGROUP2"
    )


def digest_by_the_page(chunks: list[bytes]) -> str:
    ends = np.cumsum([len(chunk) for chunk in chunks])
    digests = b"".join(xxhash.xxh3_128(chunk).digest() for chunk in chunks)
    return "xxh3-" + xxhash.xxh3_128(struct.pack(f"<{len(ends)}Q", *ends) + digests).hexdigest()


def pack_by_the_page(chunks: list[bytes], group: str) -> tuple[bytes, bytes]:
    """The pack, and its footer."""
    head = (b"KSPACK\r\n" + struct.pack("<II", 2, 0) + PACK_ID).ljust(PAGE_BYTES - 16, b"\0")
    data, stored, described = head + xxhash.xxh3_128(head).digest(), [], []
    for number, chunk in enumerate(chunks):
        digest = blake3(filled(chunk)).hexdigest()
        stored.append([len(data), len(chunk), digest])
        plain = xxhash.xxh3_128(chunk).hexdigest()
        described.append([PACK_ID.hex(), number, len(data), len(chunk), len(chunk), plain, digest, "", ""])
        data += filled(chunk)
    footer = compact({"format": 2, "pack": PACK_ID.hex(), "chunks": stored, "groups": {group: described}})
    end = filled(footer + bytes(128))
    trailer = b"KSPACKE\n" + struct.pack("<IIQQQI", 2, 0, len(data), len(footer), len(data) + len(end), len(chunks))
    trailer += bytes(16) + blake3(footer).digest() + bytes(20)
    return data + end[:-128] + footer[len(end) - 128 :] + trailer + xxhash.xxh3_128(trailer).digest(), footer


def test_what_is_written_by_the_page_is_read(tmp_path: Path) -> None:
    blob = blob_by_the_page()
    chunks = [blob[:PAGE_BYTES], blob[PAGE_BYTES:]]
    group = digest_by_the_page(chunks)
    data, footer = pack_by_the_page(chunks, group)
    store = PosixStore(tmp_path)
    assert store.create("a.pack", data)
    entry = PackEntry(
        key="a.pack", id=PACK_ID.hex(), size_bytes=len(data), footer=blake3(footer).hexdigest(), groups=(group,),
        generation=1, step=7,
    )  # fmt: skip
    reader = PackReader(store, [entry], None, tenant="", job="job")
    found = np.zeros(len(blob), np.uint8)
    reader.read_group(group, memoryview(found.data))
    reader.scrub(entry)
    assert found.tobytes() == blob == bytes(pack(flatten({"step": 7, "w": np.arange(3, dtype="<f4")})))
    assert unpack(found, group)["w"].tolist() == [0, 1, 2]
    assert vectors_of_the_page() == {
        "blob, bytes": str(len(blob)),
        "index": blob[PAGE_BYTES:-40].decode(),
        "chunk digests": ", ".join(xxhash.xxh3_128(chunk).hexdigest() for chunk in chunks),
        "digest of the group": group,
        "pack, bytes": str(len(data)),
        "last 16 bytes of the header": data[PAGE_BYTES - 16 : PAGE_BYTES].hex(),
        "footer": footer.decode(),
        "footer, BLAKE3": entry.footer,
        "trailer": data[-128:].hex(),
        "an `open` record": open_record(),
    }


def open_record() -> str:
    record = LogRecord(seq=1, kind="open", job="job", generation=1, previous="", writer="w", at_unix_s=0.0)
    data = seal(record)
    body = data.decode().partition('"body":')[2].rpartition(',"digest"')[0]
    assert json.loads(data)["digest"] == "xxh3-" + xxhash.xxh3_128(body.encode()).hexdigest()
    assert unseal(data, LogRecord, "record") == record
    return data.decode()


def vectors_of_the_page() -> dict[str, str]:
    table = PAGE.read_text().partition("## Test vectors")[2]
    return dict(re.findall(r"^\| ([^|]+) \| `(.*)` \|$", table, re.MULTILINE))
