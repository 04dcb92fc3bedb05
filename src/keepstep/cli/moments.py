"""Points in time as people write them on a command line. Owns that spelling only."""

import datetime
import re
import time

_UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}


def moment_s(text: str, now_s: float | None = None) -> float:
    """Seconds since the epoch. ``2026-11-30``, ``2026-11-30T04:15`` (UTC unless it says otherwise), or ``36h``: so long ago.

    Raises ValueError, with what can be written, for anything else.
    """
    back = re.fullmatch(r"(\d+(?:\.\d+)?)([mhdw])", text.strip())
    if back is not None:
        return (time.time() if now_s is None else now_s) - float(back[1]) * _UNITS[back[2]]
    try:
        found = datetime.datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is no point in time; write 2026-11-30, 2026-11-30T04:15, 36h, 7d or 4w") from None
    return (found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)).timestamp()
