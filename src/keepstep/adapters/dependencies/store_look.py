"""A child of its own: puts a small object into a store, gets it, deletes it, with the client that checkpoints are written by.

Run as a module. It may take long or hang; whoever started it ends it at its deadline.
"""

import secrets
import signal
import sys

from keepstep.checkpoint.stores.address import open_store

_LAST_RESORT_S = 900
"""If the agent is gone and nobody ends us."""


def look(address: str) -> None:
    """Raises OSError, ValueError or ImportError where the store is not well, or cannot be."""
    store = open_store(address)
    key, body = f"keepstep-probe/{secrets.token_hex(8)}", secrets.token_bytes(64)
    store.create(key, body)
    try:
        if store.read(key) != body:
            raise OSError("another object comes back than was put")
    finally:
        store.delete(key)


if __name__ == "__main__":
    signal.alarm(_LAST_RESORT_S)
    try:
        look(sys.argv[1])
    except (OSError, ValueError, ImportError) as error:
        print(error, file=sys.stderr)
        sys.exit(1)
