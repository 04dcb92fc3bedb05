"""A site's own rows: adds to the catalogue or changes it, field by field. Takes parsed data; reads no file.

.. code-block:: toml

    [signal."xid.63"]
    verdict = "suspect"        # only what differs

    [signal."site.chiller"]    # a new one needs cause, failure_class, scope, verdict and text
    cause = "power"
    failure_class = "thermal.facility"
    scope = "rack"
    verdict = "faulty"
    text = "the chiller of the row is down"

    [rule.repeat_on_same_unit]
    mode = "shadow"
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from keepstep.core.catalog import Catalog
from keepstep.core.catalog.row import Mode, Row, row

_NEEDED = ("cause", "failure_class", "scope", "verdict", "text")


def override(catalog: Catalog, table: Mapping[str, Any], origin: str) -> Catalog:
    """The catalogue with a site's table laid over it; ``origin`` names the table in the version and in messages.

    Raises ValueError that names the row, the field and what may stand there.
    """
    extra = set(table) - {"signal", "rule"}
    if extra:
        raise ValueError(f"{origin}: {', '.join(sorted(extra))}: only [signal.…] and [rule.…] may stand here")
    rows = dict(catalog.rows)
    for key, fields in dict(table.get("signal", {})).items():
        rows[key] = _row(rows.get(key), key, fields, origin)
    modes = dict(catalog.rule_modes)
    for name, fields in dict(table.get("rule", {})).items():
        modes[name] = _mode(name, fields, origin)
    return Catalog(version=f"{catalog.version}+{origin}", rows=rows, rule_modes=modes)


def _row(base: Row | None, key: str, fields: Any, origin: str) -> Row:
    if not isinstance(fields, Mapping):
        raise ValueError(f"{origin}: signal {key!r} must be a table of fields")
    unknown = set(fields) - set(Row.__struct_fields__)
    if unknown:
        raise ValueError(
            f"{origin}: signal {key!r} has no field {', '.join(sorted(unknown))}; there are "
            f"{', '.join(Row.__struct_fields__)}"
        )
    missing = [name for name in _NEEDED if base is None and name not in fields]
    if missing:
        raise ValueError(f"{origin}: signal {key!r} is new and needs {', '.join(missing)}")
    try:
        if base is None:
            start = msgspec.convert({**fields, "urgency": "none", "isolate": False, "confidence": 0.8}, Row)
            base = row(start.cause, start.failure_class, start.scope, start.verdict, start.text, source=origin)
        return msgspec.convert({**msgspec.to_builtins(base), **fields}, Row)
    except msgspec.ValidationError as error:
        raise ValueError(f"{origin}: signal {key!r}: {error}") from None


def _mode(name: str, fields: Any, origin: str) -> Mode:
    try:
        return Mode(fields["mode"])
    except (KeyError, TypeError, ValueError):
        choices = ", ".join(mode.value for mode in Mode)
        raise ValueError(f"{origin}: rule {name!r} takes one field, mode, which is one of {choices}") from None
