"""``bmc.toml`` in the state directory: where the management controllers of the nodes are. Reads it; opens no connection.

[node.gpu-17]
address = "https://10.1.0.17"
protocol = "redfish"            # or "ipmi", with address = "10.1.0.17" or "10.1.0.17:623"
user = "keepstep"
password_file = "bmc.password"  # relative to this file
fingerprint = "ab:cd:…"         # SHA-256 of a self-signed certificate; Redfish only
"""

import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from keepstep.core.ids import NodeId
from keepstep.ports import Bmc

PROTOCOLS = ("redfish", "ipmi")


class BmcEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One node's controller, as the file has it."""

    address: str
    protocol: str = "redfish"
    user: str = ""
    password_file: str = ""
    fingerprint: str = ""
    ca_file: str = ""
    """Authorities that sign the controllers' certificates, where they do not sign themselves."""


class _File(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    node: dict[str, BmcEntry] = {}


def read_bmc_file(path: Path) -> dict[NodeId, BmcEntry]:
    """Node -> its controller; empty where there is no file. Raises ValueError that names the line or the field."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    try:
        file = msgspec.convert(tomllib.loads(text), _File)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path}: {error}; a node reads [node.NAME] address = …, protocol = …, user = …") from None
    for name, entry in file.node.items():
        _check(path, name, entry)
    return {NodeId(name): entry for name, entry in file.node.items()}


def _check(path: Path, name: str, entry: BmcEntry) -> None:
    where = f"{path}, node {name}"
    if entry.protocol not in PROTOCOLS:
        raise ValueError(f"{where}: protocol is {entry.protocol!r}, not one of {', '.join(PROTOCOLS)}")
    if not entry.address:
        raise ValueError(f"{where}: the address is empty")
    if entry.protocol == "ipmi" and (entry.fingerprint or entry.ca_file):
        raise ValueError(f"{where}: IPMI has no certificates; remove fingerprint and ca_file")
    if entry.fingerprint and entry.ca_file:
        raise ValueError(f"{where}: give a fingerprint or a ca_file, not both")
    if bool(entry.user) != bool(entry.password_file):
        raise ValueError(f"{where}: user and password_file belong together")


def open_bmc(path: Path, name: NodeId, entry: BmcEntry) -> Bmc:
    """The controller of an entry; nothing is sent yet. Raises ValueError for a password or an address that cannot be used."""
    where, password = f"{path}, node {name}", ""
    if entry.password_file:
        secret = path.parent / entry.password_file
        try:
            password = secret.read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"{where}: cannot read the password in {secret}: {error}") from error
    try:
        if entry.protocol == "ipmi":
            from keepstep.adapters.ipmi import IpmiBmc  # its readers are many, and few sites have any

            return IpmiBmc(entry.address, entry.user, password)
        return _redfish(path, entry, password)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _redfish(path: Path, entry: BmcEntry, password: str) -> Bmc:
    try:
        from keepstep.adapters.redfish import RedfishBmc
    except ImportError:
        raise ValueError("Redfish needs the extra: pip install 'keepstep[redfish]'") from None
    verify: bool | str = str(path.parent / entry.ca_file) if entry.ca_file else True
    return RedfishBmc(entry.address, entry.user, password, entry.fingerprint, verify)
