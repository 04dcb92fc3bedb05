"""``keepstep checkpoint ls`` and ``show``: what there is, from records and indexes alone. Owns their tables; reads no state."""

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from keepstep.cli.checkpoint_place import (
    JobOption,
    KeyArgument,
    KeysCommandOption,
    KeysOption,
    StoreOption,
    TenantOption,
    find,
    find_adopted,
    open_place,
    told,
)
from keepstep.cli.terminal import JsonOption, moment, print_json, step

if TYPE_CHECKING:
    from rich.console import RenderableType

    from keepstep.checkpoint.format.records import Manifest
    from keepstep.checkpoint.repository.adopted import Registered
    from keepstep.checkpoint.repository.pack_reader import PackReader
    from keepstep.checkpoint.repository.repository import Commit, Repository


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint, kept here or adopted."""

    key: str
    step: int | None
    generation: int | None
    """None for an adopted one."""
    ranks: int | None
    size_bytes: int
    at_unix_s: float
    state: str
    """committed, verified, suspect, corrupt; or adopted."""
    reason: str
    pinned: bool
    format: str = "keepstep"
    path: str = ""
    """Where an adopted one is."""
    copies: tuple[str, ...] = ()
    """Of the stores that were asked for, those with a whole copy; known of VERIFIED ones."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    job: str
    checkpoints: list[Line]
    """Newest first."""
    damaged: dict[str, str]
    """Records of the log that cannot be believed, and why."""


class GroupView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    ranks: int
    """Ranks that have it."""
    versions: int
    """Different contents among them; equal ones are stored once."""
    size_bytes: int
    """Of all versions."""
    chunks: int | None
    """None where they cannot be looked at: see the notes."""
    old_bytes: int | None
    """Of them in packs of older checkpoints, because they have not changed."""


class PackView(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    size_bytes: int
    step: int
    generation: int
    own: bool
    """Written for this checkpoint. Else it leans on this pack of an older one."""
    chunks: int | None
    session: str


class ShardedView(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    path: str
    dtype: str
    shape: tuple[int, ...]
    parts: int


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """A record of the log about it."""

    at_unix_s: float
    what: str
    reason: str


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    store: str
    checkpoint: Line
    attempt: str
    manifest: str
    keepstep: str
    parent: str
    """Key of the commit before it; empty for the first."""
    groups: list[GroupView]
    packs: list[PackView]
    sharded: list[ShardedView]
    sessions: dict[str, dict[str, str]]
    history: list[Happening]
    notes: list[str]


def ls(
    store: StoreOption = None,
    job: JobOption = None,
    copies_in: Annotated[
        list[str] | None,
        typer.Option(
            help="Also tell which of these stores have a whole copy; may be repeated.",
            metavar="PATH|URL",
            show_default=False,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List checkpoints, newest first: step, size, age, state; adopted ones of other libraries as well."""
    from keepstep.checkpoint.repository.adopted import registered

    with told():
        repository = open_place(store, job)
        copies = [_copied(repository, address) for address in copies_in or ()]
        lines = [
            _line(commit, tuple(name for name, keys in copies if commit.key in keys)) for commit in repository.commits()
        ]
        lines += [_adopted_line(known) for known in registered(repository)]
        damaged = {str(seq): why for seq, why in repository.log.damaged().items()}
    lines.sort(key=lambda line: line.key, reverse=True)
    found = Listing(store=repository.store.name, job=repository.job, checkpoints=lines, damaged=damaged)
    if json:
        print_json(found)
    else:
        _print_listing(found)


def _copied(repository: "Repository", address: str) -> tuple[str, set[str]]:
    """A store with copies, and the keys of the VERIFIED checkpoints that are complete in it."""
    from keepstep.checkpoint.repository.copies import StoreCopies
    from keepstep.checkpoint.repository.tiers import Tier, Tiers
    from keepstep.cli.checkpoint_place import open_address

    copies = StoreCopies(open_address(address))
    tier = Tier(copies=copies)
    absent = {commit.key for commit in Tiers(repository, [tier]).due(tier)}
    verified = {commit.key for commit in repository.commits() if commit.state == "verified"}
    return copies.name, verified - absent


def _line(commit: "Commit", copies: tuple[str, ...] = ()) -> Line:
    return Line(
        key=commit.key, step=commit.step, generation=commit.generation, ranks=commit.world_size,
        size_bytes=commit.size_bytes, at_unix_s=commit.at_unix_s, state=commit.state, reason=commit.reason,
        pinned=commit.pinned, copies=copies,
    )  # fmt: skip


def _adopted_line(known: "Registered") -> Line:
    adopted = known.adopted
    return Line(
        key=known.key, step=adopted.step, generation=None, ranks=adopted.world_size, at_unix_s=known.at_unix_s,
        size_bytes=sum(file.size_bytes for file in adopted.files), state="adopted", reason=known.reason, pinned=False,
        format=adopted.format, path=adopted.path,
    )  # fmt: skip


def _print_listing(found: Listing) -> None:
    import time

    from keepstep.checkpoint.interval.plan import duration
    from keepstep.cli.checkpoint_progress import size
    from keepstep.cli.tables import show, table

    made = table("key", "step", "gen", "ranks", "size", "age", "state", "notes", flexible=("notes",))
    for line in found.checkpoints:
        made.add_row(
            line.key.lstrip("0"),
            step(line.step),
            step(line.generation),
            "–" if line.ranks is None else str(line.ranks),
            size(line.size_bytes),
            duration(max(0.0, time.time() - line.at_unix_s)),
            line.state,
            _notes(line),
        )
    show(made, f"no checkpoint of job {found.job} in {found.store}" if found.job else f"no checkpoint in {found.store}")
    for why in found.damaged.values():
        typer.echo(f"keepstep: {why}", err=True)


def _notes(line: Line) -> str:
    told_so = ["pinned"] if line.pinned else []
    told_so += [f"{line.format}: {line.path}"] if line.path else []
    told_so += [f"copy in {', '.join(line.copies)}"] if line.copies else []
    told_so += [line.reason] if line.reason else []
    return "; ".join(told_so)


def show(
    key: KeyArgument,
    store: StoreOption = None,
    job: JobOption = None,
    keys: KeysOption = None,
    keys_command: KeysCommandOption = None,
    tenant: TenantOption = "",
    every: Annotated[
        bool, typer.Option("--all", help="Every pack, sharded tensor and file, not the first 20.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Show one checkpoint: groups, packs and what they lean on, sharded tensors, keys, and what became of it."""
    from keepstep.cli.tables import show_all

    with told():
        repository = open_place(store, job, keys=keys, keys_command=keys_command, tenant=tenant)
        adopted = find_adopted(repository, key)
        found = look_at(repository, find(repository, key)) if adopted is None else None
    if json:
        print_json(found or adopted)
    elif adopted is not None:
        show_all(*_render_adopted(adopted, None if every else 20))
    elif found is not None:
        show_all(*_render(found, None if every else 20))


def look_at(repository: "Repository", commit: "Commit") -> Shown:
    """Everything that records, the manifest and the indexes of the packs tell. Raises StateInvalid, a key error or OSError."""
    manifest = repository.manifest(commit.key)
    record = repository.log.record(int(commit.key))
    notes: list[str] = []
    reader = repository.reader(manifest)
    return Shown(
        store=repository.store.name,
        checkpoint=_line(commit),
        attempt=record.attempt,
        manifest=record.manifest,
        keepstep=manifest.keepstep,
        parent=f"{manifest.parent:020d}" if manifest.parent else "",
        groups=_groups(manifest, reader, f"steps/{record.folder}/", notes),
        packs=_packs(manifest, reader, f"steps/{record.folder}/", notes),
        sharded=_sharded(manifest),
        sessions=manifest.sessions,
        history=[
            Happening(at_unix_s=later.at_unix_s, what=later.state or later.kind, reason=later.reason)
            for later in repository.log.records(repository.job)
            if later.seq == record.seq or later.of == record.seq
        ],
        notes=list(dict.fromkeys(notes)),
    )


def _groups(manifest: "Manifest", reader: "PackReader", prefix: str, notes: list[str]) -> list[GroupView]:
    from keepstep.checkpoint.errors import KeyUnusable, StateInvalid

    own = {entry.id for entry in manifest.packs if entry.key.startswith(prefix)}
    names = dict.fromkeys(name for part in manifest.ranks for name in part.groups)
    views = []
    for name in names:
        having = [part.groups[name] for part in manifest.ranks if name in part.groups]
        digests = dict.fromkeys(having)
        chunks: int | None = 0
        old_bytes: int | None = 0
        for digest in digests:
            try:
                of_group = reader.chunks(digest)
            except (KeyUnusable, StateInvalid) as error:
                notes.append(f"group {name}: {error}")
                chunks = old_bytes = None
                break
            chunks = (chunks or 0) + len(of_group)
            old_bytes = (old_bytes or 0) + sum(chunk.plain_bytes for chunk in of_group if chunk.pack not in own)
        views.append(
            GroupView(
                name=name, ranks=len(having), versions=len(digests), chunks=chunks, old_bytes=old_bytes,
                size_bytes=sum(manifest.sizes_bytes[digest] for digest in digests),
            )
        )  # fmt: skip
    return views


def _packs(manifest: "Manifest", reader: "PackReader", prefix: str, notes: list[str]) -> list[PackView]:
    from keepstep.checkpoint.errors import StateInvalid

    views = []
    for entry in sorted(manifest.packs, key=lambda entry: (not entry.key.startswith(prefix), entry.key)):
        chunks = None
        try:
            chunks = len(reader.footer(entry).chunks)
        except StateInvalid as error:
            notes.append(str(error))
        views.append(
            PackView(
                key=entry.key, size_bytes=entry.size_bytes, step=entry.step, generation=entry.generation,
                own=entry.key.startswith(prefix), chunks=chunks, session=entry.session,
            )
        )  # fmt: skip
    return views


def _sharded(manifest: "Manifest") -> list[ShardedView]:
    parts: dict[tuple[str, str], set[object]] = {}
    first: dict[tuple[str, str], ShardedView] = {}
    for part in manifest.ranks:
        for group, tensors in part.sharded.items():
            for tensor in tensors:
                place = (group, tensor.path)
                parts.setdefault(place, set()).add(tensor.extent)
                view = ShardedView(group=group, path=tensor.path, dtype=tensor.dtype, shape=tensor.shape, parts=0)
                first.setdefault(place, view)
    return [msgspec.structs.replace(view, parts=len(parts[place])) for place, view in first.items()]


def _render(found: Shown, most: int | None) -> list["RenderableType"]:
    from rich.text import Text

    from keepstep.cli.checkpoint_progress import size

    line = found.checkpoint
    leans = sum(1 for pack in found.packs if not pack.own)
    head = f"{line.key.lstrip('0')} · step {line.step} · generation {line.generation} · {line.state}"
    parts: list[RenderableType] = [
        Text(head + (" · pinned" if line.pinned else ""), style="bold"),
        Text(
            f"committed {moment(line.at_unix_s)} by keepstep {found.keepstep}; {size(line.size_bytes)} of {line.ranks} ranks"
            f"; after {found.parent.lstrip('0') or 'nothing'}; leans on {leans or 'no'} older pack{'s' if leans != 1 else ''}"
        ),
    ]
    parts += [Text(f"note: {note}", style="yellow") for note in found.notes]
    parts += [_group_table(found), *_pack_table(found, most), *_sharded_table(found, most)]
    for session, facts in found.sessions.items():
        told_so = ", ".join(f"{name} {value}" for name, value in facts.items() if name != "check" and value)
        parts.append(Text(f"sealed with session key {session}: {told_so}"))
    parts.append(Text("\nhistory", style="bold"))
    for happened in found.history:
        because = f": {happened.reason}" if happened.reason else ""
        parts.append(Text(f"  {moment(happened.at_unix_s)} {happened.what}{because}"))
    return parts


def _render_adopted(known: "Registered", most: int | None) -> list["RenderableType"]:
    from rich.text import Text

    from keepstep.cli.checkpoint_progress import size
    from keepstep.cli.tables import table

    adopted = known.adopted
    head = f"{known.key.lstrip('0')} · step {step(adopted.step)} · {adopted.format} · adopted {moment(known.at_unix_s)}"
    parts: list[RenderableType] = [
        Text(head, style="bold"),
        Text(f"{adopted.path}: {adopted.tensors.count} tensors, {size(adopted.tensors.size_bytes)}"),
    ]
    parts += [Text(f"reason: {known.reason}")] if known.reason else []
    parts += [Text(f"note: {warning}", style="yellow") for warning in adopted.warnings]
    parts += [Text(f"without {', '.join(adopted.missing_parts)}")] if adopted.missing_parts else []
    made = table("file", "size", "BLAKE3", flexible=("file", "BLAKE3"))
    for file in adopted.files[:most]:
        made.add_row(file.path, size(file.size_bytes), file.blake3)
    hidden = len(adopted.files[most:]) if most is not None else 0
    return [*parts, made, *([Text(f"and {hidden} more files: --all")] if hidden else [])]


def _group_table(found: Shown) -> "RenderableType":
    from keepstep.cli.checkpoint_progress import size
    from keepstep.cli.tables import table

    made = table("group", "ranks", "versions", "size", "chunks", "unchanged", flexible=("group",))
    for group in found.groups:
        old = "–" if group.old_bytes is None else size(group.old_bytes)
        made.add_row(group.name, str(group.ranks), str(group.versions), size(group.size_bytes), step(group.chunks), old)
    return made


def _pack_table(found: Shown, most: int | None) -> list["RenderableType"]:
    from rich.text import Text

    from keepstep.cli.checkpoint_progress import size
    from keepstep.cli.tables import table

    made = table("pack", "of step", "size", "chunks", "sealed", flexible=("pack",))
    for pack in found.packs[:most]:
        made.add_row(
            pack.key.removeprefix("steps/"), str(pack.step) + ("" if pack.own else " (leant on)"),
            size(pack.size_bytes), step(pack.chunks), "yes" if pack.session else "no",
        )  # fmt: skip
    hidden = len(found.packs[most:]) if most is not None else 0
    return [made, *([Text(f"and {hidden} more packs: --all")] if hidden else [])]


def _sharded_table(found: Shown, most: int | None) -> list["RenderableType"]:
    from rich.text import Text

    from keepstep.cli.tables import table

    if not found.sharded:
        return []
    made = table("sharded tensor", "dtype", "shape", "parts", flexible=("sharded tensor", "shape"))
    for tensor in found.sharded[:most]:
        shape = " × ".join(map(str, tensor.shape))
        made.add_row(f"{tensor.group}: {tensor.path}", tensor.dtype, shape, str(tensor.parts))
    hidden = len(found.sharded[most:]) if most is not None else 0
    return [made, *([Text(f"and {hidden} more sharded tensors: --all")] if hidden else [])]
