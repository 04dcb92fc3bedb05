"""Bytes from an attacker: a load refuses them with a state or key error, or gives a committed state; nothing else happens.

Blind changes, and changes by one who knows the format and makes every digest above them right (see forger).
"""

import base64
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstep.checkpoint.errors import KeyUnusable, SaveFailed, StateInvalid, Superseded
from keepstep.checkpoint.format import pack as layout
from keepstep.checkpoint.format.records import LogRecord, Manifest, Receipt, seal, unseal
from keepstep.checkpoint.keys.providers import FileProvider
from keepstep.checkpoint.keys.sessions import SessionKeys
from keepstep.checkpoint.repository.copies import StoreCopies
from keepstep.checkpoint.repository.repair import repair, repair_log
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.repository.retention import Policy, retain
from keepstep.checkpoint.repository.save import Save
from keepstep.checkpoint.repository.tiers import from_copies
from keepstep.checkpoint.state.blob import pack, unpack_verified
from keepstep.checkpoint.state.tree import flatten

from .forger import STRANGE, Forger, alter, enveloped
from .keyrings import put_key
from .shared_disk import JOB, Disk, View, commit_one, groups, state, token_of

REFUSED = (StateInvalid, KeyUnusable, OSError)
"""OSError: the store has no such piece, or does not answer."""
SEEDS = st.integers(0, 2**32)
_few = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))


class Original:
    """A store with three checkpoints in the clear, or sealed; copied for every attempt."""

    def __init__(self, directory: Path, *, is_sealed: bool) -> None:
        put_key(directory, "1.key")
        self._directory, self._is_sealed = directory, is_sealed
        disk = Disk()
        for step in (1, 2):
            commit_one(self.repository(disk), step)
        self.objects = disk.objects

    def repository(self, disk: Disk) -> Repository:
        keys = SessionKeys(View(disk), [FileProvider(self._directory)]) if self._is_sealed else None
        return Repository(View(disk), JOB, keys=keys)

    def disk(self) -> Disk:
        made = Disk()
        made.objects = dict(self.objects)
        return made


@pytest.fixture(scope="module", params=[False, True], ids=["clear", "sealed"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("keys") / "keys", is_sealed=request.param)


def use(original: Original, disk: Disk, *, is_forged: bool = False) -> None:
    """All that reads a store. Whatever loads is a state that was saved, unless the forger could make any state."""
    repository = original.repository(disk)
    try:
        commits = repository.commits()
    except OSError:
        return
    for commit in commits:
        try:
            trees = repository.load(commit.key, 0)
        except REFUSED:
            continue
        if not is_forged:
            assert token_of(trees) in (1, 2)
    for act in (
        repository.newest_valid,
        *(lambda key=commit.key: repository.scrub(key) for commit in commits),
        *(lambda key=commit.key: repair(repository, key, [StoreCopies(View(disk))]) for commit in commits),
        lambda: repair_log(repository, [StoreCopies(View(disk))]),
        lambda: from_copies(StoreCopies(View(disk)), JOB, keys=repository.keys),
        lambda: retain(repository, Policy(keep=1, min_valid=1)),
    ):
        try:
            act()  # type: ignore[no-untyped-call]
        except (*REFUSED, Superseded, SaveFailed):
            continue


def spoil(data: bytes, source: random.Random) -> bytes:
    """Blindly: bits, lengths, runs of bytes."""
    made = bytearray(data)
    for _ in range(source.randrange(1, 4)):
        at = source.randrange(len(made) + 1)
        match source.randrange(5):
            case 0 if made:
                made[at % len(made)] ^= 1 << source.randrange(8)
            case 1:
                del made[at:]
            case 2:
                made[at:at] = source.randbytes(source.randrange(1, 40))
            case 3:
                del made[at : at + source.randrange(1, 5000)]
            case _:
                made[at : at + 8] = source.choice([b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7])
    return bytes(made)


@given(SEEDS)
@_few
def test_blind_changes_of_any_object_are_refused(original: Original, seed: int) -> None:
    source, disk = random.Random(seed), original.disk()
    for key in source.sample(sorted(disk.objects), source.randrange(1, 4)):
        disk.objects[key] = spoil(disk.objects[key], source)
    use(original, disk)


@given(SEEDS)
@_few
def test_forged_manifests_are_refused_or_harmless(original: Original, seed: int) -> None:
    source, disk = random.Random(seed), original.disk()
    forger = Forger(disk)
    body = forger.manifest
    for _ in range(source.randrange(1, 3)):
        body = alter(body, source)
    forger.put_manifest(body)
    use(original, disk, is_forged=True)


@given(SEEDS)
@_few
def test_forged_records_are_refused_or_harmless(original: Original, seed: int) -> None:
    source, disk = random.Random(seed), original.disk()
    forger = Forger(disk)
    forger.put_record(alter(msgspec.to_builtins(forger.record), source))
    for name in sorted(key for key in disk.objects if key.startswith("commits/")):
        if source.random() < 0.1:
            body = msgspec.json.decode(disk.objects[name])["body"]
            disk.objects[name] = enveloped(alter(body, source), LogRecord)
    use(original, disk, is_forged=True)


@given(SEEDS)
@_few
def test_forged_footers_are_refused_or_harmless(original: Original, seed: int) -> None:
    source, disk = random.Random(seed), original.disk()
    forger = Forger(disk)
    key = source.choice(forger.pack_keys())
    raw, body = forger.footer(key)
    changed = alter(body, source) if source.random() < 0.8 else None
    footer = spoil(raw, source) if changed is None else json.dumps(changed, separators=(",", ":")).encode()
    forger.put_pack(key, footer[: 1 << 20], tag=source.randbytes(16) if source.random() < 0.2 else b"")
    use(original, disk, is_forged=True)


@given(SEEDS)
@_few
def test_forged_receipts_stop_the_commit_or_are_harmless(original: Original, seed: int) -> None:
    source, disk = random.Random(seed), original.disk()
    repository = original.repository(disk)
    save = Save(job=JOB, generation=0, step=3, attempt="a", world_size=2)
    for rank in range(2):
        repository.write_part(save, rank, groups(3, rank))
    key = f"{save.prefix()}receipts/1"
    body = msgspec.json.decode(disk.objects[key])["body"]
    disk.objects[key] = enveloped(alter(body, source), Receipt)
    try:
        original.repository(disk).try_commit(save)
    except (*REFUSED, SaveFailed):
        pass
    use(original, disk, is_forged=True)


@given(SEEDS)
@settings(max_examples=120, deadline=None)
def test_the_parsers_refuse_or_accept(seed: int) -> None:
    source = random.Random(seed)
    for kind in (Receipt, Manifest, LogRecord):
        for data in (source.randbytes(source.randrange(200)), enveloped(source.choice(STRANGE), kind), b"[" * 50_000):
            with pytest.raises(StateInvalid):
                unseal(data, kind, "it")
    size = source.randrange(0, 10_000)
    for data in (source.randbytes(layout.TRAILER_BYTES), source.randbytes(source.randrange(300))):
        with pytest.raises(StateInvalid):
            layout.read_trailer(data, size, "it")
        with pytest.raises(StateInvalid):
            layout.check_header(data, "0" * 32, "it")


@given(SEEDS)
@settings(max_examples=120, deadline=None)
def test_group_blobs_from_an_attacker_are_refused_or_make_a_tree(seed: int) -> None:
    source = random.Random(seed)
    blob = bytes(pack(flatten(state(1)["model"])))
    if source.random() < 0.5:
        made = spoil(blob, source)
    else:
        made = _with_index(blob, source)
    array = np.frombuffer(bytearray(made), np.uint8)
    try:
        unpack_verified(array)
    except StateInvalid:
        return


def _with_index(blob: bytes, source: random.Random) -> bytes:
    """The blob with an altered index, and lengths to match."""
    payload, index, count, magic = (int.from_bytes(blob[-32 + 8 * n : -24 + 8 * n], "little") for n in range(4))
    text = json.loads(blob[payload : payload + index])
    new = json.dumps(alter(text, source), separators=(",", ":")).encode()
    lengths = b"".join(n.to_bytes(8, "little") for n in (payload, len(new), count, magic))
    return blob[:payload] + new + blob[payload + index : payload + index + 8 * count] + lengths


def test_what_is_sealed_and_no_base64_is_refused() -> None:
    footer = layout.Footer(pack="0" * 32, chunks=(), groups=msgspec.Raw(b'"' + base64.b64encode(b"x")[:-1] + b'"'))
    with pytest.raises(StateInvalid):
        layout.sealed_groups(footer, "it")


def test_no_size_that_is_only_claimed_takes_memory(tmp_path: Path) -> None:
    """In a process of its own, with a limit on its memory: sizes, counts and nesting that somebody made up."""
    program = Path(__file__).parent / "programs" / "bombs.py"
    # How much address space an allocator sets aside for each thread is not what is looked at.
    environment = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, program, tmp_path], capture_output=True, text=True, timeout=150, check=False, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all refused" in done.stdout


def test_manifests_with_keys_that_are_none_touch_nothing(tmp_path: Path) -> None:
    """A pack key is a path: no file outside of the store is opened, whatever stands in a manifest."""
    original = Original(tmp_path / "keys", is_sealed=False)
    for key in (
        "../../etc/passwd",
        "/etc/passwd",
        "steps/../../x",
        "commits/00000000000000000001.json",
        "",
        "x" * 5000,
    ):
        disk = original.disk()
        forger = Forger(disk)
        forger.manifest["packs"][0]["key"] = key
        forger.put_manifest(forger.manifest)
        asked: list[str] = []
        view = View(disk, lambda when, call, what, asked=asked: asked.append(what))  # type: ignore[misc]
        repository = Repository(view, JOB)
        newest = repository.commits()[0]
        with pytest.raises(StateInvalid, match="no pack of its job"):
            repository.load(newest.key, 0)
        assert key not in asked or key.startswith("commits/")


def test_a_body_that_is_altered_and_enveloped_anew_is_what_it_says() -> None:
    """The forger is worth something: what it makes passes the digests."""
    record = LogRecord(seq=1, kind="open", job=JOB, generation=0, previous="", writer="x", at_unix_s=1.0)
    made = enveloped(msgspec.to_builtins(record) | {"generation": 5}, LogRecord)
    assert unseal(made, LogRecord, "it") == msgspec.structs.replace(record, generation=5)
    assert enveloped(msgspec.to_builtins(record), LogRecord) == seal(record)
