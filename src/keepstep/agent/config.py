"""The agent's configuration file. Owns its tables and keys, and telling a person what is wrong where; reads nothing else."""

import dataclasses
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from keepstep.adapters.dependencies import Dependency, Mount
from keepstep.adapters.dependencies.declared import KINDS
from keepstep.adapters.host import Service
from keepstep.agent.settings import DeclaredDevice

Declared = TypeVar("Declared")

_AGENT_KEYS = ("server", "node", "state_dir", "sources")
_TABLES = ("agent", "domains", "source", "dependency", "mount", "service", "device")


class ConfigError(ValueError):
    """Names the file, the key, and what may stand there."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    agent: dict[str, Any] = {}
    domains: dict[str, str] = {}
    options: dict[str, dict[str, Any]] = {}
    dependencies: tuple[Dependency, ...] = ()
    mounts: tuple[Mount, ...] = ()
    services: tuple[Service, ...] = ()
    devices: tuple[DeclaredDevice, ...] = ()


def read_config(path: str) -> Config:
    """Raises ConfigError."""
    try:
        with open(path, "rb") as file:
            table = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; --config wants a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: this is no TOML: {error}") from error
    return parse_config(table, path)


def parse_config(table: Mapping[str, Any], path: str) -> Config:
    _known(table, _TABLES, path, "the file", "table")
    for name in table:
        _is_table(table[name], f"{path}: [{name}]")
    return Config(
        agent=_agent(table.get("agent", {}), path),
        domains=_domains(table.get("domains", {}), path),
        options={name: _is_table(of, f"{path}: [source.{name}]") for name, of in table.get("source", {}).items()},
        dependencies=_declared(table, "dependency", Dependency, path),
        mounts=_declared(table, "mount", Mount, path),
        services=_declared(table, "service", Service, path),
        devices=_declared(table, "device", DeclaredDevice, path),
    )


def _agent(table: Mapping[str, Any], path: str) -> dict[str, Any]:
    _known(table, _AGENT_KEYS, path, "[agent]", "key")
    for key, value in table.items():
        if key == "sources":
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise ConfigError(f"{path}: [agent] {key} is {value!r}; write a list of names")
        elif not isinstance(value, str):
            raise ConfigError(f"{path}: [agent] {key} is {value!r}; write text")
    return dict(table)


def _domains(table: Mapping[str, Any], path: str) -> dict[str, str]:
    for key, value in table.items():
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{path}: [domains] {key} is {value!r}; write the name of a {key} as text")
    return dict(table)


def _declared(table: Mapping[str, Any], kind: str, shape: type[Declared], path: str) -> tuple[Declared, ...]:
    """One record for each ``[kind.name]``. The name of a device is its slot."""
    identity = "slot" if shape is DeclaredDevice else "name"
    keys = tuple(field.name for field in dataclasses.fields(shape) if field.name != identity)  # type: ignore[arg-type]
    found = []
    for name, fields in table.get(kind, {}).items():
        where = f"[{kind}.{name}]"
        _known(_is_table(fields, f"{path}: {where}"), keys, path, where, "key")
        if identity == "slot" and not name.isdecimal():
            raise ConfigError(f"{path}: {where}: the name of a device is its slot: write [device.0]")
        try:
            found.append(msgspec.convert({**fields, identity: int(name) if identity == "slot" else name}, shape))
        except msgspec.ValidationError as error:
            raise ConfigError(f"{path}: {where} {_plain(str(error))}") from None
    return tuple(found)


def _plain(text: str) -> str:
    """The validator's words in the order in which a person looks: key, problem, what may stand there."""
    problem, found, place = text.partition(" - at `$.")
    if not found:
        return text.replace("Object missing required field", "lacks")
    key = place.rstrip("`")
    choices = f"; it is one of {', '.join(KINDS)}" if key == "kind" else ""
    return f"{key}: {problem[:1].lower()}{problem[1:]}{choices}"


def _known(table: Mapping[str, Any], keys: tuple[str, ...], path: str, where: str, word: str) -> None:
    extra = next((key for key in table if key not in keys), None)
    if extra is not None:
        raise ConfigError(f"{path}: {where} has no {word} {extra!r}; there may stand {', '.join(keys)}")


def _is_table(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is {value!r}; a table of keys must stand here")
    return value
