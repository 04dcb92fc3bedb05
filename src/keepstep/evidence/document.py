"""A document: one file of evidence, however broken. Owns bounded access to its text; must not know any format."""

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

MAX_LINE_CHARS = 16_384
"""Longer lines are cut: nothing that any program writes as one record is longer, and memory stays bounded."""
HEAD_BYTES = 64 * 1024
MAX_JSON_BYTES = 256 * 1024 * 1024


class Document:
    """``path`` is what the user called it; recognition must not depend on it."""

    def __init__(self, path: str, data: bytes) -> None:
        self.path = path
        self.data = data

    @cached_property
    def head(self) -> str:
        """The beginning, as text."""
        return _text(self.data[:HEAD_BYTES])

    def lines(self) -> Iterator[tuple[int, str]]:
        """(number from 1, text without its end). Invalid UTF-8 is replaced, NULs are dropped, long lines are cut."""
        start, number, size = 0, 0, len(self.data)
        while start < size:
            end = self.data.find(b"\n", start)
            end = size if end < 0 else end
            number += 1
            yield number, _text(self.data[start : min(end, start + MAX_LINE_CHARS)]).rstrip("\r")
            start = end + 1

    @cached_property
    def json(self) -> Any:
        """The document as JSON; None where it is none, is too large, or nests too deeply."""
        text = self.data.lstrip(b"\xef\xbb\xbf \t\r\n")
        if text[:1] not in (b"{", b"[") or len(text) > MAX_JSON_BYTES:
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return None

    @cached_property
    def is_binary(self) -> bool:
        sample = self.data[:4096]
        return b"\0" in sample or (len(sample) - len(sample.translate(None, _CONTROL))) * 10 > len(sample)


_CONTROL = bytes([*range(9), *range(14, 27)])


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="replace").replace("\0", "")
