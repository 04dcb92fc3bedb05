"""The model of the disk: what must be there after a power cut, and what may be."""

import os
from pathlib import Path
from typing import Any

from tests.crash.layer import Op
from tests.crash.power import Disk, Tree, cuts, read_tree, write_tree
from tests.crash.trace import Call, Flag

OLD, NEW = b"o" * 5000, b"n" * 9000
BLOCK = 4096


class Program:
    """Calls that are written down by hand, on a directory with ``f`` (inode ``f``) and two folders in it."""

    def __init__(self, root: Path) -> None:
        write_tree({"f": OLD, "a": None, "b": None}, root)
        self.root = root
        self.calls: list[Call] = []
        self.inode = {name: os.stat(root / name).st_ino for name in ("f", "a", "b", ".")}

    def call(self, op: Op, path: str = "", path2: str = "", **more: Any) -> "Program":
        fields = {"error": 0, "inode": 0, "offset": 0, "length": 0, "flags": 0, "data": b"", **more}
        self.calls.append(Call(op=op, looks=False, number=len(self.calls) + 1, path=path, path2=path2, **fields))
        return self

    def create(self, path: str, inode: int, data: bytes) -> "Program":
        self.call(Op.CREATE, path, inode=inode, flags=Flag.CREATED)
        return self.call(Op.WRITE, path, inode=inode, data=data)

    def left(self, states: int = 200) -> list[Tree]:
        """What a cut after the last call may leave."""
        return [cut.tree for cut in cuts(Disk(self.root), self.calls, [len(self.calls)], states)]


def test_what_was_synced_is_there(tmp_path: Path) -> None:
    program = Program(tmp_path / "d").create("n", 1, NEW).call(Op.SYNC, inode=1)
    program.call(Op.SYNC, inode=program.inode["."])
    assert program.left() == [{"a": None, "b": None, "f": OLD, "n": NEW}]


def test_a_file_synced_by_itself_may_be_lost_with_its_name(tmp_path: Path) -> None:
    left = Program(tmp_path / "d").create("n", 1, NEW).call(Op.SYNC, inode=1).left()
    assert {tree.get("n") for tree in left} == {None, NEW}


def test_a_name_may_be_there_before_its_bytes(tmp_path: Path) -> None:
    program = Program(tmp_path / "d").create("n", 1, NEW)
    program.call(Op.SYNC, inode=program.inode["."])
    found = {tree["n"] for tree in program.left()}
    assert {b"", NEW, NEW[:BLOCK]} <= found
    assert NEW[:BLOCK] + bytes(BLOCK) + NEW[2 * BLOCK :] in found, "blocks are written in any order"
    assert all(set(content or b"") <= {0, ord("n")} for content in found), "never the bytes of another file"


def test_blocks_of_an_overwritten_file_are_old_or_new(tmp_path: Path) -> None:
    program = Program(tmp_path / "d")
    program.call(Op.WRITE, inode=program.inode["f"], data=b"n" * len(OLD))
    found = {tree["f"] for tree in program.left()}
    old, new = OLD[:BLOCK], b"n" * BLOCK
    tails = (OLD[BLOCK:], b"n" * (len(OLD) - BLOCK))
    assert found == {head + tail for head in (old, new) for tail in tails}


def test_a_failed_sync_loses_the_bytes_for_good(tmp_path: Path) -> None:
    program = Program(tmp_path / "d")
    inode = program.inode["f"]
    program.call(Op.WRITE, inode=inode, data=NEW)
    program.call(Op.SYNC, inode=inode, error=5).call(Op.SYNC, inode=inode)
    assert {tree["f"] for tree in program.left()} == {OLD.ljust(len(NEW), b"\0")}


def test_a_write_through_is_durable_by_itself(tmp_path: Path) -> None:
    program = Program(tmp_path / "d")
    program.call(Op.WRITE, inode=program.inode["f"], data=NEW, flags=Flag.DURABLE)
    assert {tree["f"] for tree in program.left()} == {NEW}


def test_a_rename_is_whole_and_one_directory_settles_it(tmp_path: Path) -> None:
    program = Program(tmp_path / "d")
    program.call(Op.RENAME, "f", "a/g", inode=program.inode["f"])
    assert {("f" in tree, "a/g" in tree) for tree in program.left()} == {(True, False), (False, True)}
    program.call(Op.SYNC, inode=program.inode["a"])
    assert program.left() == [{"a": None, "a/g": OLD, "b": None}]


def test_names_come_in_any_order_unless_they_are_the_same(tmp_path: Path) -> None:
    program = Program(tmp_path / "d")
    for path, inode in (("a/1", 1), ("a/2", 2)):
        program.call(Op.CREATE, path, inode=inode, flags=Flag.CREATED)
    program.call(Op.UNLINK, "a/1", inode=1)
    seen = {("a/1" in tree, "a/2" in tree) for tree in program.left()}
    assert seen == {(False, False), (False, True), (True, False), (True, True)}
    program.call(Op.LINK, "f", "a/1", inode=program.inode["f"]).call(Op.SYNC, inode=program.inode["a"])
    assert {tree["a/1"] for tree in program.left()} == {OLD}


def test_a_new_folder_that_is_not_synced_takes_all_with_it(tmp_path: Path) -> None:
    program = Program(tmp_path / "d").call(Op.MKDIR, "c", inode=7).create("c/n", 1, NEW)
    program.call(Op.SYNC, inode=1).call(Op.SYNC, inode=7)
    assert {tree.get("c/n") for tree in program.left()} == {None, NEW}
    program.call(Op.SYNC, inode=program.inode["."])
    assert {tree.get("c/n") for tree in program.left()} == {NEW}


def test_a_tree_is_written_as_it_was(tmp_path: Path) -> None:
    tree: Tree = {"a": None, "a/f": NEW, "g": b""}
    write_tree(tree, tmp_path / "d")
    assert read_tree(tmp_path / "d") == tree
