"""A policy written as TOML: overrides of the built-in one. Owns the spelling, and telling a person what is wrong where."""

import tomllib
from typing import Any

import msgspec

from keepstep.core.catalog import CATALOG, Catalog
from keepstep.core.policy import Policy

_NOT_HERE = ("catalog",)
"""Has a file of its own."""


def read_policy(text: str, catalog: Catalog = CATALOG) -> Policy:
    """The built-in policy with the overrides of ``text``. Raises ValueError that names the key."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the policy is no TOML: {error}") from None
    policy: Policy = _merged(Policy(), table, "")
    return msgspec.structs.replace(policy, catalog=catalog)


def _merged(base: Any, table: dict[str, Any], where: str) -> Any:
    """``base`` with the keys of ``table`` replaced; tables within tables go the same way."""
    fields = {field.name: field for field in msgspec.structs.fields(base) if where or field.name not in _NOT_HERE}
    changes: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{where}.{key}" if where else key
        if key not in fields:
            raise ValueError(f"the policy has no {path!r}; there may stand {', '.join(fields)}")
        present = getattr(base, key)
        if isinstance(present, msgspec.Struct):
            if not isinstance(value, dict):
                raise ValueError(f"{path} is {value!r}; a table must stand there")
            changes[key] = _merged(present, value, path)
            continue
        if isinstance(present, dict) and isinstance(value, dict):
            unknown = next((name for name in value if name not in present), None)
            if unknown is not None:
                raise ValueError(f"the policy has no {path}.{unknown}; there may stand {', '.join(present)}")
            value = {**present, **value}
        try:
            changes[key] = msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            raise ValueError(f"{path}: {error}") from None
        if isinstance(present, float) and not value >= 0:  # nan is neither
            raise ValueError(f"{path} is {value!r}; it cannot be negative, and must be a number")
    return msgspec.structs.replace(base, **changes)
