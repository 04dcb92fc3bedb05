"""Rows of host signals. Data only."""

from keepstep.core.catalog.row import Row

ROWS: dict[str, Row] = {}
