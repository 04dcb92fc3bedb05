"""What a power cut can leave of a directory, computed from a trace. Owns the model of the disk.

The program ran on a real file system that was never synced; here its calls are done again on a model that keeps two
things apart: what is seen (the page cache) and what is on the disk.

- The *content* of a file is durable after fsync or fdatasync of it returned 0, or after a write through O_DSYNC. Nothing
  else makes it so: not close, not O_DIRECT (the device has a cache, and the size is metadata). Until then the file holds
  what was last durable, or the first few of the writes since (the last of them cut at a block), or any mixture of 4 KiB
  blocks, each as it was after any of those writes, with zeroes where nothing was yet: what delayed allocation,
  fallocate, truncation and a device that reorders leave. Its size is that after any of those writes.
- An fsync that *failed* has dropped the data (Linux marks the pages clean): those bytes never become durable, however
  often fsync is called again and however well they are read from the cache. The size may.
- A *name* (made, linked, renamed, removed) is durable after fsync of its directory. Until then each operation has
  happened or not, whatever the others did: any subset, of which a prefix (what one journal gives) is one. A file synced
  by itself may be lost with its name, which ext4 happens not to do and POSIX allows.

Taken to be impossible, on ext4 (data=ordered or writeback with delayed allocation), XFS and Btrfs alike:

- half of a rename or of any other operation on names: the journal writes it whole, so syncing either directory of a
  rename between two settles both sides;
- two operations on the *same* name in the wrong order, or a later one durable while an earlier one can still come back;
- a name that leads to nothing, or to another file: a directory entry and its inode are in one transaction;
- bytes of another file, or old ones from the free list, in a file: both systems set the size, or turn an extent from
  unwritten to written, only after the data is out;
- a block of 4 KiB that is torn: sectors are atomic on the device, pages are written whole. (The formats are checked
  against damage inside of a block by their own tests.)
- loss of what was durable. (Media faults are the business of digests, tiers and repair.)
"""

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.crash.layer import Op
from tests.crash.trace import Call, Flag

BLOCK_BYTES = 4096
NAMED_CHOICES = ("least", "most", "names", "data")
"""Nothing that was not synced; everything; every name and no content; every content and no name."""
DRAWS = 4
"""Seeds tried for each state that is wanted: many give a state that is known."""

Tree = dict[str, bytes | None]
"""Path -> content, or None for a directory."""


class Change(NamedTuple):
    """A change to a content: ``data`` (zeroes if None, ``length`` of them) at ``offset``, or a new size."""

    offset: int
    length: int
    data: bytes | None
    resize: bool = False
    grow: bool = True

    def on(self, content: bytes) -> bytes:
        if self.resize:
            return content[: self.length].ljust(self.length, b"\0")
        end = self.offset + self.length
        middle = bytes(self.length) if self.data is None else self.data
        whole = content[: self.offset].ljust(self.offset, b"\0") + middle + content[end:]
        return whole if self.grow else whole[: len(content)]


class File:
    """The content of a file, twice."""

    def __init__(self, content: bytes = b"") -> None:
        self.seen = content
        self.pending: list[Change] = []
        self.versions = [content]
        """What the disk holds after none, one, ... all of the pending changes."""

    @property
    def durable(self) -> bytes:
        return self.versions[0]

    def change(self, change: Change, *, durable: bool = False) -> None:
        self.seen = change.on(self.seen)
        if durable:
            self.versions = [change.on(version) for version in self.versions]
        else:
            self.pending.append(change)
            self.versions.append(change.on(self.versions[-1]))

    def sync(self) -> None:
        self.versions = self.versions[-1:]
        self.pending = []

    def sync_failed(self) -> None:
        """Only the size may still become durable."""
        size = Change(0, len(self.seen), None, resize=True)
        self.versions, self.pending = [self.durable, size.on(self.durable)], [size]

    def cut(self, dice: random.Random) -> bytes:
        """One content that the disk may have now."""
        versions, way = self.versions, dice.random()
        if way < 0.2:
            return versions[0]
        if way < 0.4:
            return versions[-1]
        number = dice.randrange(len(versions))
        if way < 0.6:
            return self._prefix(versions, number, dice)
        size = len(versions[number])
        blocks = [
            dice.choice(versions)[at : at + BLOCK_BYTES].ljust(BLOCK_BYTES, b"\0") for at in range(0, size, BLOCK_BYTES)
        ]
        return b"".join(blocks)[:size]

    def _prefix(self, versions: list[bytes], number: int, dice: random.Random) -> bytes:
        if number == len(self.pending) or self.pending[number].data is None:
            return versions[number]
        change = self.pending[number]
        length = dice.randrange(0, change.length + 1, BLOCK_BYTES)
        return (
            Change(change.offset, length, (change.data or b"")[:length]).on(versions[number])
            if length
            else versions[number]
        )


class Directory:
    """Names, twice."""

    def __init__(self) -> None:
        self.durable: dict[str, Node] = {}
        self.seen: dict[str, Node] = {}


Node = File | Directory


class Edit(NamedTuple):
    """One name is given to a node, or taken away."""

    directory: Directory
    name: str
    node: Node | None

    @property
    def key(self) -> tuple[int, str]:
        return id(self.directory), self.name

    def on(self, names: dict[str, Node]) -> None:
        if self.node is None:
            names.pop(self.name, None)
        else:
            names[self.name] = self.node


class Disk:
    """A directory tree as it is seen and as it is on the disk."""

    def __init__(self, root: Path) -> None:
        """What is below ``root`` now, all of it durable."""
        self._nodes: dict[int, Node] = {}
        self._journal: list[tuple[Edit, ...]] = []
        self.told: list[str] = []
        """What the program has said so far."""
        self.root = self._read(root)

    def _read(self, path: Path) -> Directory:
        directory = Directory()
        self._nodes[path.stat().st_ino] = directory
        for entry in os.scandir(path):
            inode, below = entry.inode(), Path(entry.path)
            if entry.is_symlink():
                raise ValueError(f"{entry.path} is a symbolic link: the model has none")
            if entry.is_dir():
                node: Node = self._read(below)
            else:
                node = self._nodes.get(inode) or File(below.read_bytes())
                self._nodes[inode] = node
            directory.durable[entry.name] = directory.seen[entry.name] = node
        return directory

    # ---- doing again what the program did

    def apply(self, call: Call) -> None:
        """Do one call again."""
        if call.op is Op.MARK:
            self.told.append(call.path)
        elif call.error:
            if call.op in (Op.SYNC, Op.DATASYNC) and isinstance(node := self._nodes[call.inode], File):
                node.sync_failed()
        elif call.op in (Op.LINK, Op.RENAME, Op.UNLINK, Op.MKDIR, Op.RMDIR, Op.CREATE):
            self._names(call)
        elif call.op in (Op.SYNC, Op.DATASYNC):
            self._sync(self._nodes[call.inode])
        elif call.op is Op.SYNC_ALL:
            for node in list(self._nodes.values()):
                self._sync(node)
        elif call.op is Op.SYMLINK:
            raise ValueError(f"the model has no symbolic links: {call}")
        elif not call.looks:
            self._content(call)

    def _content(self, call: Call) -> None:
        if call.op is Op.CLOSE:
            return
        file = self._nodes[call.inode]
        assert isinstance(file, File), call
        if call.op is Op.WRITE:
            change = Change(call.offset, len(call.data), call.data)
        elif call.op is Op.TRUNCATE:
            change = Change(0, call.length, None, resize=True)
        elif call.flags & Flag.PUNCH:
            change = Change(call.offset, call.length, None, grow=not call.flags & Flag.KEEP_SIZE)
        elif call.flags & Flag.KEEP_SIZE or call.offset + call.length <= len(file.seen):
            return
        else:
            change = Change(0, call.offset + call.length, None, resize=True)
        file.change(change, durable=bool(call.flags & Flag.DURABLE))

    def _names(self, call: Call) -> None:
        if call.op in (Op.UNLINK, Op.RMDIR):
            return self._edit(Edit(*self._slot(call.path), None))
        if call.op is Op.LINK:
            return self._edit(Edit(*self._slot(call.path2), self._nodes[call.inode]))
        if call.op is Op.RENAME:
            old, new, node = self._slot(call.path), self._slot(call.path2), self._nodes[call.inode]
            there = new[0].seen.get(new[1])
            if call.flags & Flag.EXCHANGE:
                return self._edit(Edit(*old, there), Edit(*new, node))
            return None if there is node else self._edit(Edit(*old, None), Edit(*new, node))
        if call.op is Op.MKDIR or call.flags & Flag.CREATED:
            node = self._nodes[call.inode] = Directory() if call.op is Op.MKDIR else File()
            return self._edit(Edit(*self._slot(call.path), node)) if call.path else None
        if call.flags & Flag.TRUNCATED:
            file = self._nodes[call.inode]
            assert isinstance(file, File), call
            file.change(Change(0, 0, None, resize=True))
        return None

    def _slot(self, path: str) -> tuple[Directory, str]:
        *parents, name = path.split("/")
        directory = self.root
        for parent in parents:
            below = directory.seen[parent]
            assert isinstance(below, Directory), path
            directory = below
        return directory, name

    def _edit(self, *edits: Edit) -> None:
        for edit in edits:
            edit.on(edit.directory.seen)
        self._journal.append(edits)

    def _sync(self, node: Node) -> None:
        if isinstance(node, File):
            return node.sync()
        settled: set[tuple[int, str]] = set()
        stays: list[tuple[Edit, ...]] = []
        for edits in reversed(self._journal):
            keys = {edit.key for edit in edits}
            if settled & keys or any(edit.directory is node for edit in edits):
                settled |= keys
            else:
                stays.append(edits)
        stays.reverse()
        remaining = {id(edits) for edits in stays}
        for edits in self._journal:
            if id(edits) not in remaining:
                for edit in edits:
                    edit.on(edit.directory.durable)
        self._journal = stays
        return None

    # ---- the cut

    def seen(self) -> Tree:
        """What a process sees now: to compare with what is really there."""
        return _tree(self.root, lambda directory: directory.seen, lambda file: file.seen)

    def after_cut(self, choice: str) -> Tree:
        """One tree that a power cut at this point can leave: one of NAMED_CHOICES, or any other text as a seed."""
        dice = random.Random(choice)
        if choice in ("most", "names"):
            happened = list(self._journal)
        elif choice in ("least", "data"):
            happened = []
        elif dice.random() < 0.4:
            happened = self._journal[: dice.randint(0, len(self._journal))]
        else:
            happened = [edits for edits in self._journal if dice.random() < 0.6]
        names: dict[int, dict[str, Node]] = {}
        for edits in happened:
            for edit in edits:
                edit.on(names.setdefault(id(edit.directory), dict(edit.directory.durable)))
        contents: dict[int, bytes] = {}

        def content(file: File) -> bytes:
            if choice in ("least", "names"):
                return file.durable
            if choice in ("most", "data"):
                return file.versions[-1]
            if id(file) not in contents:
                contents[id(file)] = file.cut(dice)
            return contents[id(file)]

        return _tree(self.root, lambda directory: names.get(id(directory), directory.durable), content)


def _tree(
    root: Directory, names_of: Callable[[Directory], dict[str, Node]], content_of: Callable[[File], bytes]
) -> Tree:
    found: Tree = {}

    def walk(directory: Directory, above: str) -> None:
        for name, node in sorted(names_of(directory).items()):
            if isinstance(node, Directory):
                found[above + name] = None
                walk(node, f"{above}{name}/")
            else:
                found[above + name] = content_of(node)

    walk(root, "")
    return found


def mark_of(tree: Tree, told: list[str]) -> int:
    """Equal states need to be looked at once. (Python keeps the hash of a content with it: most are looked at often.)"""
    return hash((tuple(tree.items()), tuple(told)))


def write_tree(tree: Tree, root: Path) -> None:
    """Make ``root`` hold exactly this. It must not exist."""
    root.mkdir()
    for path, content in tree.items():
        if content is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(content)


def read_tree(root: Path) -> Tree:
    """What is really below ``root``."""
    paths = sorted(root.rglob("*"))
    return {str(path.relative_to(root)): None if path.is_dir() else path.read_bytes() for path in paths}


class Cut(NamedTuple):
    """A state that a cut can leave."""

    name: str
    call: Call
    """The last one before the cut."""
    tree: Tree
    told: list[str]


def points(calls: list[Call], since: int = 0) -> list[int]:
    """Where a cut makes a difference: how many calls were made before it."""
    return [number for number, call in enumerate(calls, 1) if number > since and not call.looks]


def cut_names(points: list[int], states: int) -> list[str]:
    """What :func:`cuts` calls its states, before it is known which are equal."""
    choices = [(*NAMED_CHOICES, *(f"{number}/{seed}" for seed in range(states))) for number in points]
    return [_cut_name(number, choice) for number, some in zip(points, choices, strict=True) for choice in some]


def _cut_name(number: int, choice: str) -> str:
    return f"cut after call {number}, choice {choice}"


def cuts(
    start: Disk, calls: list[Call], points: list[int], states: int, wanted: Callable[[str], bool] = bool
) -> Iterator[Cut]:
    """States at some points: the named choices, then up to ``states`` others. Equal ones once.

    ``wanted``: which, by their names. ``start`` is used up.
    """
    here = set(points)
    known: set[int] = set()
    for number, call in enumerate(calls, 1):
        if call.looks:
            continue
        start.apply(call)
        if number not in here:
            continue
        drawn = 0
        for choice in (*NAMED_CHOICES, *(f"{number}/{seed}" for seed in range(DRAWS * states))):
            name = _cut_name(number, choice)
            if drawn == states or not wanted(name):
                continue
            tree = start.after_cut(choice)
            mark = mark_of(tree, start.told)
            if mark not in known:
                known.add(mark)
                drawn += choice not in NAMED_CHOICES
                yield Cut(name, call, tree, list(start.told))
