"""From what people write to a repository: addresses of stores, places of keys, tiers. Owns how these are put together.

A tier is written ``ADDRESS@SECONDS`` for copies in one store, or ``K+M@SECONDS:DOMAIN=ADDRESS,…`` for copies that are spread
over failure domains, any M of K+M pieces of which may be lost. A checkpoint is copied when the newest copy is so many seconds
older.
"""

import re
import shlex
from collections.abc import Callable

from msgspec import Struct

from keepstep.checkpoint.keys.port import Keys, Provider
from keepstep.checkpoint.repository.copies import Copies, ErasureCopies, StoreCopies
from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.stores.address import open_store
from keepstep.checkpoint.stores.port import Store

_SPREAD = re.compile(r"(\d+)\+(\d+)@(\d+(?:\.\d+)?):(.+)")
_PLAIN = re.compile(r"(.+)@(\d+(?:\.\d+)?)")


class Place(Struct, frozen=True):
    """Where copies go, and how often."""

    copies: Copies
    every_s: float


def open_tier(text: str) -> Place:
    """A tier as the module describes it. Raises ValueError that says what is wrong, StoreUnfit, or ImportError."""
    if spread := _SPREAD.fullmatch(text):
        from keepstep.checkpoint.erasure.locations import Location, Locations
        from keepstep.checkpoint.erasure.tier import ErasureTier, Policy

        locations = []
        for part in spread[4].split(","):
            domain, equals, address = part.partition("=")
            if not (domain and equals and address):
                raise ValueError(f"{part!r} in tier {text!r} is not DOMAIN=ADDRESS, for example rack1=/mnt/a")
            locations.append(Location(address, domain, open_store(address)))
        policy = Policy(data=int(spread[1]), parity=int(spread[2]))
        return Place(ErasureCopies(ErasureTier(Locations(locations), policy)), float(spread[3]))
    if plain := _PLAIN.fullmatch(text):
        return Place(StoreCopies(open_store(plain[1])), float(plain[2]))
    raise ValueError(
        f"tier {text!r} is neither ADDRESS@SECONDS nor K+M@SECONDS:DOMAIN=ADDRESS,DOMAIN=ADDRESS,…: for example"
        " s3://bucket/run7@1800, or 4+2@3600:rack1=/mnt/a,rack2=/mnt/b,…"
    )


def open_keys(store: Store, directory: str = "", command: str = "") -> Keys | None:
    """Keys whose wrapping keys are files in ``directory``, or are kept by ``command``; None if neither is named.

    Raises ValueError for a command that cannot be taken apart, ImportError without the extra ``encryption``.
    """
    providers: list[Provider] = []
    if directory or command:
        from keepstep.checkpoint.keys.providers import CommandProvider, FileProvider
        from keepstep.checkpoint.keys.sessions import SessionKeys

        providers += [FileProvider(directory)] if directory else []
        providers += [CommandProvider(shlex.split(command))] if command else []
        return SessionKeys(store, providers)
    return None


def opener(
    address: str,
    job: str,
    *,
    tenant: str = "",
    keys_directory: str = "",
    keys_command: str = "",
    compress: bool = False,
) -> Callable[[], Repository]:
    """Makes repositories of one job in one store: threads need one each. Raises ValueError or ImportError."""
    store = open_store(address)
    keys = open_keys(store, keys_directory, keys_command)
    return lambda: Repository(store, job, tenant=tenant, keys=keys, compress=compress)
