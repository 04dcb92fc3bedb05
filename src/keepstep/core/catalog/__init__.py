"""The catalogue: what each signal means. Versioned data, one file per family; must not look at the World.

Vendors disagree about the same code, so every row says whose view it takes, and a site may add or override rows
(``override.py``). A key that is not listed falls back to its family: ``xid.999`` to ``xid``, then to ``unknown``.
"""

from msgspec import Struct

from keepstep.core.catalog import (
    agent,
    bmc,
    disk,
    driver,
    gate,
    generic,
    gpu,
    host,
    job,
    network,
    nic,
    nvlink5,
    pcie,
    scheduler,
    storage,
    sxid,
    xid,
)
from keepstep.core.catalog.row import Mode, Remedy, Row, Scope, Verdict, row
from keepstep.core.incident import Cause

CATALOG_VERSION = "2"

UNKNOWN = row(
    Cause.UNKNOWN, "unclassified", Scope.NODE, Verdict.WATCH,
    "a signal that the catalogue does not know: kept, never acted on", confidence=0.2, source="project",
)  # fmt: skip

FAMILIES: dict[str, dict[str, Row]] = {
    "xid": xid.ROWS,
    "nvlink5": nvlink5.ROWS,
    "sxid": sxid.ROWS,
    "gpu": gpu.ROWS,
    "pcie": pcie.ROWS,
    "host": host.ROWS,
    "nic": nic.ROWS,
    "disk": disk.ROWS,
    "driver": driver.ROWS,
    "network": network.ROWS,
    "storage": storage.ROWS,
    "bmc": bmc.ROWS,
    "job": job.ROWS,
    "scheduler": scheduler.ROWS,
    "gate": gate.ROWS,
    "agent": agent.ROWS,
    "generic": generic.ROWS,
}


class Catalog(Struct, frozen=True, kw_only=True):
    version: str
    rows: dict[str, Row]
    rule_modes: dict[str, Mode] = {}
    """Combination rule -> mode, where it differs from the rule's own."""

    def row(self, signal: str) -> Row:
        """The row of a signal, or that of its nearest family."""
        key = signal
        while key not in self.rows:
            key, dot, _ = key.rpartition(".")
            if not dot:
                return self.rows.get(signal.split(".")[0], UNKNOWN)
        return self.rows[key]


def _merged() -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for family, more in FAMILIES.items():
        twice = rows.keys() & more.keys()
        assert not twice, f"family {family} says again what another one says: {sorted(twice)}"
        rows |= more
    return rows


CATALOG = Catalog(version=CATALOG_VERSION, rows=_merged())

__all__ = ["CATALOG", "CATALOG_VERSION", "FAMILIES", "UNKNOWN", "Catalog", "Mode", "Remedy", "Row", "Scope", "Verdict"]
