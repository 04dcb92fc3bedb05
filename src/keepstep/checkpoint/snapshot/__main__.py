"""``python -m keepstep.checkpoint.snapshot``: the snapshot server of one node and job.

Holds the memory tier outside the workers' lifetime. Never imports torch. Reads its configuration here and nowhere else;
what it does is in service. Prints one JSON line ``{"socket": …, "address": …, "pid": …}`` when it is ready. Everything it
holds is anonymous memory, so nothing stays behind however it ends.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path

from keepstep.checkpoint.opening import open_tier, opener
from keepstep.checkpoint.repository.traffic import Pace
from keepstep.checkpoint.snapshot.copier import DurableTiers
from keepstep.checkpoint.snapshot.messages import PeerHello
from keepstep.checkpoint.snapshot.service import Service

SECRET = "KEEPSTEP_SNAPSHOT_SECRET"
"""Environment variable: shared secret of the snapshot servers of one job."""
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.parent and not _die_with(options.parent):
        return 0
    # The terminal's Ctrl-C goes to the whole group; this process ends when its launcher says so, or is gone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    path = Path(options.socket)
    try:
        listener = _listen(path)
    except OSError as error:
        print(
            f"cannot listen on {path}: {error.strerror}; give --socket a path that is free and short", file=sys.stderr
        )
        return 2
    try:
        hello = PeerHello(job=options.job, secret=os.environ.get(SECRET, ""))
        service = Service(listener, hello, options.listen, _durable(options))
        print(json.dumps({"socket": str(path), "address": service.address, "pid": os.getpid()}), flush=True)
        service.run()
    finally:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
    # Threads that still sit in a peer's socket or a hung disk hold nothing that matters.
    sys.stdout.flush()
    os._exit(0)


def _durable(options: argparse.Namespace) -> DurableTiers | None:
    if not options.directory:
        return None
    open_repository = opener(
        options.directory, options.job, tenant=options.tenant, keys_directory=options.keys,
        keys_command=options.keys_command, compress=options.compress,
    )  # fmt: skip
    pace = Pace(bytes_s=options.restore_bytes_s, lane=options.priority)
    return DurableTiers(open_repository, options.keep, tuple(map(open_tier, options.copies)), pace)


def _listen(path: Path) -> socket.socket:
    """A listening socket that only this user reaches. The file of a server that was killed is taken over."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    old_umask = os.umask(0o177)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        listener.bind(str(path))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(old_umask)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(str(path)) == 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m keepstep.checkpoint.snapshot", description=__doc__)
    parser.add_argument("--socket", required=True, help="path of the unix socket to listen on")
    parser.add_argument("--job", required=True, help="job id; workers and peers of another job are refused")
    parser.add_argument("--directory", default="", help="directory or URL of the store; empty: memory only")
    parser.add_argument("--keys", default="", help="directory with the key files that wrap session keys")
    parser.add_argument("--keys-command", default="", help="command that wraps and unwraps session keys")
    parser.add_argument(
        "--copies", action="append", default=[], help="further tier: ADDRESS@SECONDS, or K+M@SECONDS:DOMAIN=ADDRESS,…"
    )
    parser.add_argument(
        "--compress", action="store_true", help="make checkpoints smaller, for a slow link to the store"
    )
    parser.add_argument("--tenant", default="", help="for whom the checkpoints are sealed")
    parser.add_argument("--listen", default="127.0.0.1", help="address to listen on for peers; the port is chosen")
    parser.add_argument("--keep", type=int, default=3, help="how many committed checkpoints stay on disk")
    parser.add_argument(
        "--restore-bytes-s",
        type=int,
        default=0,
        help="what all restores together may take of the store per second; the same for all jobs that share it; 0: no limit",
    )
    parser.add_argument(
        "--priority",
        choices=("urgent", "normal", "background"),
        default="normal",
        help="of this job among those that share the store, when many restore or save at once",
    )
    parser.add_argument("--parent", type=int, default=0, help="pid of the launcher: end when it ends")
    options = parser.parse_args(arguments)
    if options.keep < 1:
        parser.error("--keep must be at least 1: the last valid checkpoint is never deleted")
    if options.restore_bytes_s < 0:
        parser.error("--restore-bytes-s must be 0, for no limit, or more")
    return options


def _die_with(parent: int) -> bool:
    """Have the kernel end this process with its parent; False if the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    return os.getppid() == parent


if __name__ == "__main__":
    sys.exit(main())
