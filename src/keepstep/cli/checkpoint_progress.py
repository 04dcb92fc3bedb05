"""How far a long checkpoint command is, and sizes in words. Owns the progress bar: on stderr, and only on a terminal."""

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_UNITS = ("kB", "MB", "GB", "TB", "PB")


class Bar:
    """One task that is counted in bytes."""

    def __init__(self, progress: "Progress", task: "TaskID") -> None:
        self._progress, self._task = progress, task

    def begin(self, what: str, total_bytes: int) -> None:
        """What is done next, from 0."""
        self._progress.reset(self._task, total=total_bytes, description=what)

    def advance(self, count_bytes: int) -> None:
        self._progress.advance(self._task, count_bytes)

    def move(self, done_bytes: int, total_bytes: int) -> None:
        """Where it is, in all."""
        self._progress.update(self._task, completed=done_bytes, total=total_bytes)


@contextlib.contextmanager
def bar(what: str = "") -> Iterator[Bar]:
    """A progress bar that is gone when its block ends; silent where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        *columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as progress:
        yield Bar(progress, progress.add_task(what, total=None))


def size(count_bytes: int) -> str:
    """``812 B``, ``3.4 MB``: powers of 1000, as disks are sold."""
    if count_bytes < 1000:
        return f"{count_bytes} B"
    value = count_bytes / 1000
    for unit in _UNITS[:-1]:
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} {_UNITS[-1]}"
