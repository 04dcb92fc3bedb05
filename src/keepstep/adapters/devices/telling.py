"""How a child of a source talks: a JSON document a line, as long as somebody listens. Imports only what is small."""

import json
import os
import sys
import time
from typing import Any

_PARENT = os.getppid()


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def is_heard() -> bool:
    """Whoever started this process is still there."""
    return os.getppid() == _PARENT


def rest(pause_s: float) -> bool:
    """A pause between two sweeps. False where nobody listens any more."""
    until_s = time.monotonic() + pause_s
    while time.monotonic() < until_s:
        if not is_heard():
            return False
        time.sleep(min(1.0, pause_s))
    return True
