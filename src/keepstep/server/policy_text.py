"""A policy as TOML, for people: every value, and what differs from the built-in one. The way back is ``policy_file``."""

import enum
import json
from collections.abc import Iterator
from typing import Any

import msgspec

from keepstep.core.policy import Policy

_NOT_HERE = ("catalog",)
"""Has a file of its own."""

_BUILT_IN = Policy()


def policy_text(policy: Policy) -> str:
    """What ``policy_file.read_policy`` reads as the same policy."""
    top, tables = [], []
    for name in (field.name for field in msgspec.structs.fields(policy) if field.name not in _NOT_HERE):
        value, usual = getattr(policy, name), getattr(_BUILT_IN, name)
        if isinstance(value, msgspec.Struct):
            tables.append("\n".join([f"[{name}]", *_lines(value, usual, name)]))
        elif isinstance(value, dict):
            tables.append("\n".join([f"[{name}]", *_items(value, usual)]))
        else:
            top.append(_line(name, value, usual))
    return "\n".join(top) + "\n\n" + "\n\n".join(tables) + "\n"


def _lines(value: msgspec.Struct, usual: Any, where: str) -> Iterator[str]:
    """Plain fields first: in TOML a table ends where the next one begins."""
    names = [field.name for field in msgspec.structs.fields(value)]
    for name in names:
        if not isinstance(getattr(value, name), dict):
            yield _line(name, getattr(value, name), getattr(usual, name))
    for name in names:
        if isinstance(getattr(value, name), dict):
            yield f"[{where}.{name}]"
            yield from _items(getattr(value, name), getattr(usual, name))


def _items(value: dict[str, Any], usual: dict[str, Any]) -> Iterator[str]:
    for key, one in value.items():
        yield _line(key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key), one, usual.get(key))


def _line(name: str, value: Any, usual: Any) -> str:
    differs = f"  # built in: {_spelt(usual)}" if value != usual else ""
    return f"{name} = {_spelt(value)}{differs}"


def _spelt(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return json.dumps(value.value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_spelt, value))}]"
    return json.dumps(value)
