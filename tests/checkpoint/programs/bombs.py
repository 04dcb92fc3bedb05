"""Loads checkpoints whose manifests and packs claim what nobody has, under a limit of memory. Prints what was refused."""

import functools
import resource
import sys
from pathlib import Path
from typing import Any

import msgspec

from keepstep.checkpoint import Repository, StateInvalid

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.checkpoint.forger import Forger
from tests.checkpoint.shared_disk import JOB, Disk, View, commit_one

ROOM_BYTES = 256 * 1024 * 1024


def prepared() -> tuple[Disk, Forger]:
    disk = Disk()
    repository = Repository(View(disk), JOB)
    commit_one(repository, 1)
    return disk, Forger(disk)


def huge_group(size_bytes: int) -> Any:
    def make(forger: Forger) -> None:
        digest = next(iter(forger.manifest["sizes_bytes"]))
        forger.manifest["sizes_bytes"][digest] = size_bytes
        forger.put_manifest(forger.manifest)

    return make


def huge_pack(size_bytes: int) -> Any:
    def make(forger: Forger) -> None:
        forger.manifest["packs"][0]["size_bytes"] = size_bytes
        forger.put_manifest(forger.manifest)

    return make


def altered_groups(change: Any) -> Any:
    def make(forger: Forger) -> None:
        [key] = forger.pack_keys()
        _, body = forger.footer(key)
        change(body["groups"])
        forger.put_pack(key, msgspec.json.encode(body))

    return make


def many_chunks(groups: dict[str, Any]) -> None:
    for digest in groups:
        groups[digest] *= 20_000


def wide_chunk(groups: dict[str, Any]) -> None:
    for chunks in groups.values():
        chunks[0][3] = chunks[0][4] = 1 << 40


def nested(forger: Forger) -> None:
    [key] = forger.pack_keys()
    forger.put_pack(key, b'{"chunks":[],"format":2,"groups":' + b"[" * 1_000_000)


BOMBS = {
    "group of 1 TiB": huge_group(1 << 40),
    "group of 8 EiB": huge_group(1 << 63),
    "group of minus one": huge_group(-1),
    "pack of 1 TiB": huge_pack(1 << 40),
    "a chunk twenty thousand times": altered_groups(many_chunks),
    "a chunk of 1 TiB": altered_groups(wide_chunk),
    "a footer of brackets": nested,
}


def main() -> None:
    commit_one(Repository(View(Disk()), JOB), 1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + ROOM_BYTES, used + ROOM_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (90, 90))
    for name, make in BOMBS.items():
        disk, forger = prepared()
        make(forger)
        repository = Repository(View(disk), JOB)
        key = repository.commits()[0].key
        for act in (functools.partial(repository.load, key, 0), functools.partial(repository.verify, key)):
            try:
                act()
            except StateInvalid as error:
                print(f"{name}: {error}"[:200])
            else:
                sys.exit(f"{name} was not refused")
    print("all refused")


main()
