"""The rendezvous store's host: a process of its own, so that no rank is special and no key outlives its generation.

Owns one TCPStore for its whole life. It is forked from the zygote where that is safe, else it is started afresh; either
way it says where it listens and then does nothing but live until it is killed.
"""

import os
import signal
import socket
import sys

from keepstep.launcher import control
from keepstep.launcher.process import die_with_parent

_BACKLOG = 4096
"""Every rank of the job connects at once."""


def host(link: socket.socket, address: str, parent: int) -> None:
    """Listens on a port that the kernel picks, tells the launcher over ``link``, and never returns."""
    die_with_parent(parent)
    try:
        store, port = _listen(address)
    except (ImportError, OSError, RuntimeError) as error:
        control.send(link, control.StoreUp(address="", why=f"no rendezvous store: {error}"))
        sys.exit(1)
    pid = os.getpid()
    pidfd = os.pidfd_open(pid)
    control.send(link, control.StoreUp(address=f"{address}:{port}", pid=pid), [pidfd])
    os.close(pidfd)
    link.close()
    while True:
        signal.pause()
        assert store is not None


def _listen(address: str) -> tuple[object, int]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # We bind, not the store: an address of ours only, and no gap in which another process takes the port.
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.bind((address, 0))
    listener.listen(_BACKLOG)
    port = int(listener.getsockname()[1])
    store = TCPStore(
        host_name=address, port=port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
    return store, port


def free_port(address: str) -> int:
    """A port that was free a moment ago, for a job without a store of ours."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    host(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], int(sys.argv[3]))
