"""What the harness needs from a program that is to be broken, as a Protocol. Owns the registry of programs."""

import importlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

Tell = Callable[[str], None]
"""Says something to the outside, where it survives the program: what was promised, above all."""


class Scenario(Protocol):
    """A program and its oracle. Each method runs in a process of its own, forked from one that has imported it all."""

    clean: Any
    """What :meth:`footprint` says of a directory that :meth:`prepare` and :meth:`afterwards` ran in, and nothing else."""

    def prepare(self, root: Path) -> None:
        """Fill ``root``, an empty directory, with what is there before."""
        ...

    def run(self, root: Path, tell: Tell) -> None:
        """What is broken. It must survive every error of the file system: whatever it raises is a finding."""
        ...

    def recover(self, root: Path, tell: Tell) -> None:
        """In the same process, when the fault is over. Whatever it raises is a finding."""
        ...

    def resume(self, root: Path, tell: Tell) -> None:
        """In another process, after :meth:`run` was killed: go on, and say what is relied on."""
        ...

    def meanwhile(self, root: Path, tell: Tell) -> None:
        """In another process, while :meth:`run` stands still somewhere. It must not raise, whatever it finds."""
        ...

    def check(self, root: Path, told: list[str]) -> None:
        """The oracle. ``told``: what was said before the end. An AssertionError (or anything raised) is a finding."""
        ...

    def afterwards(self, root: Path) -> None:
        """Use ``root`` normally for a while. What a fault left behind is expected to be gone then."""
        ...

    def footprint(self, root: Path) -> Any:
        """What is left in ``root``, to be compared with ``clean``."""
        ...


def load(name: str) -> Scenario:
    """``module:attribute`` below tests.crash.programs."""
    module, _, attribute = name.partition(":")
    found: Scenario = getattr(importlib.import_module(f"tests.crash.programs.{module}"), attribute)()
    return found


def teller(path: Path, mark: Callable[[str], None]) -> Tell:
    """Appends lines to a file outside of the root, and puts them into the trace."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def tell(line: str) -> None:
        os.write(fd, f"{line}\n".encode())
        mark(line)

    return tell
