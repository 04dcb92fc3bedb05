"""What the library needs from a place that keeps objects, as a Protocol. Owns the contract; adapters are beside it.

A *store* maps keys (``steps/00000100-g1-a0/receipt-0.json``: 1 to 1024 characters of ``[A-Za-z0-9._-]`` and ``/``, no empty,
``.`` or ``..`` part) to immutable byte strings. Nothing is ever overwritten, except by :meth:`Store.hint`. Everything that goes
wrong is an OSError with words for a person: FileNotFoundError for an absent key, others as they come. Every method may be
called from several threads at once.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

BLOCK_BYTES = 4096
"""Streamed objects are written in multiples of this, except for the last block: the unit of direct I/O."""


class Entry(NamedTuple):
    """An object in a listing."""

    key: str
    size_bytes: int


class ObjectWriter(Protocol):
    """An object that is being written. It appears whole at :meth:`finish`, or never.

    Not for use by two threads at once. Leaving a ``with`` block without ``finish`` aborts.
    """

    def write(self, block: Any) -> None:
        """Append a buffer: a multiple of BLOCK_BYTES, except for the last one. May go on reading it until the next
        ``write`` or ``finish`` returns, so the caller alternates between buffers. Fast where its address is a multiple of
        BLOCK_BYTES too."""
        ...

    def finish(self) -> None:
        """Make it durable, and visible under its key. Raises FileExistsError if the key is taken."""
        ...

    def abort(self) -> None:
        """Leave nothing behind. Idempotent; does nothing after ``finish``."""
        ...

    def __enter__(self) -> "ObjectWriter": ...

    def __exit__(self, *_: object) -> None: ...


class Store(Protocol):
    """See the module."""

    name: str
    """For people, and to tell stores apart: a path or a URL without secrets."""

    def create(self, key: str, data: Any) -> bool:
        """Make ``key`` appear with all of ``data``, durable when this returns. False, changing nothing, if it is taken.

        Exactly one of any number of callers gets True, unless an OSError leaves it open who did: then read it back.
        """
        ...

    def writer(self, key: str, size_bytes: int) -> ObjectWriter:
        """Stream a large object of about ``size_bytes``. Raises OSError (ENOSPC) where it certainly does not fit."""
        ...

    def read(self, key: str) -> bytes:
        """A whole small object."""
        ...

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        """Fill ``view`` from ``offset`` on. Raises OSError if the object ends before."""
        ...

    def size(self, key: str) -> int | None:
        """Bytes, or None if there is no such object."""
        ...

    def list(self, prefix: str) -> Iterator[Entry]:
        """Objects whose keys begin with ``prefix`` (whole parts: it ends in ``/`` or is empty), in order of their keys. Objects
        that are half written are not in it."""
        ...

    def delete(self, key: str) -> None:
        """An absent key is fine."""
        ...

    def tidy(self, idle_s: float) -> None:
        """Remove what writers that died have left half written, if nothing was added to it for ``idle_s``."""
        ...

    def hint(self, key: str, data: bytes) -> None:
        """Write or overwrite a small object that nothing depends on."""
        ...
