"""Checks of this machine, for ``keepstep doctor``: files, disk, limits, certificates. Each looks at one thing; no server."""

import importlib.util
import os
import resource
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from keepstep.cli.findings import Finding, bad, good, note
from keepstep.cli.terminal import moment
from keepstep.server.state_dir import StateDir

FREE_BAD_BYTES, FREE_NOTE_SHARE = 512 * 1024**2, 0.10
FSYNC_TRIES, FSYNC_NOTE_S, FSYNC_BAD_S = 15, 0.02, 0.2
FILES_NOTE = 4096
"""A server holds one file per client, an agent some per source."""
JOURNAL_AHEAD_S = 60.0
NETWORK_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "lustre", "ceph", "fuse.sshfs", "gpfs", "beegfs")
EXTRAS = {
    "server": ("cryptography", "httpx", "jinja2", "litestar", "prometheus_client", "psycopg", "uvicorn"),
    "otel": ("opentelemetry.sdk", "opentelemetry.exporter.otlp"),
    "redfish": ("sushy",),
    "nvml": ("pynvml",),
}
CERTIFICATE_NOTE_SHARE = 0.25
"""Programs renew at a third of the life left: below this, nobody does."""


def state_directory(state: StateDir) -> Iterator[Finding]:
    check = "state directory"
    try:
        seen = state.path.stat()
    except FileNotFoundError:
        yield note(check, f"{state.path} is not there yet", "`keepstep run` or `keepstep server` makes it")
        return
    except OSError as error:
        yield bad(check, f"{state.path}: {error.strerror}", "choose another --state-dir, or mend its permissions")
        return
    if seen.st_uid != os.getuid():
        yield bad(
            check, f"{state.path} belongs to user {seen.st_uid}", "run as that user, or choose another --state-dir"
        )
    elif loose := stat.S_IMODE(seen.st_mode) & 0o077:
        yield bad(check, f"others have access to {state.path} (mode …{loose:o})", f"chmod 700 {state.path}")
    else:
        yield good(check, f"{state.path} is private")


def secrets_on_disk(state: StateDir) -> Iterator[Finding]:
    """The token, and keys: whoever can read them is the owner, or the authority."""
    check = "secrets"
    files = [state.token_file, *(state.path / "ca").glob("*.key"), state.path / "identity" / "key.pem"]
    present = [file for file in files if file.exists()]
    for file in present:
        loose = stat.S_IMODE(file.stat().st_mode) & 0o077
        if loose:
            mend = (
                f"chmod 600 {file}; if somebody may have read it, replace it: remove the file and start the server anew"
            )
            yield bad(check, f"others have access to {file} (mode …{loose:o})", mend)
    if state.token_file.exists() and len(state.token_file.read_text().strip()) < 32:
        yield bad(check, f"{state.token_file} is damaged", "remove it and start the server anew: it makes another one")
    if present:
        yield good(check, f"{len(present)} secret files looked at")


def alerts(state: StateDir) -> Iterator[Finding]:
    """Who is told when something needs a person: a file with a mistake is told now, not at the next start."""
    from keepstep.review.wording import count
    from keepstep.server.alert_file import read_alert_file
    from keepstep.server.observability import FILE, open_email, open_webhook

    path = state.path / FILE
    if not path.exists():
        if state.journal.exists() or state.address_file.exists():
            yield note(
                "alerts",
                f"there is no {path}: nobody is told of anything",
                "write one: docs/how-to/monitor-and-alert.md",
            )
        return
    try:
        read = read_alert_file(path)
        for name, hook in read.webhook.items():
            open_webhook(path, name, hook)
        for name, mail in read.email.items():
            open_email(path, name, mail)
    except ValueError as error:
        yield bad("alerts", str(error), "mend it, see `keepstep alerts check`, then start the server anew")
        return
    channels = len(read.webhook) + len(read.email)
    if channels:
        yield good("alerts", f"{count(channels, 'channel')} in {path}; `keepstep alerts test` tries them")
    else:
        yield note("alerts", f"{path} names no webhook and no email: nobody is told of anything", "name one")


def journal(state: StateDir, database: str) -> Iterator[Finding]:
    """The whole chain is read: on a journal of gigabytes this takes a while."""
    from keepstep.adapters.database.opening import open_journal
    from keepstep.ports import JournalCorrupt, JournalSchemaNewer, JournalUnavailable

    check, where = "journal", database or state.journal
    try:
        opened = open_journal(where, read_only=True)
    except FileNotFoundError:
        yield note(check, f"{state.journal} is not there yet", "the first server makes it")
        return
    except JournalSchemaNewer as error:
        yield bad(check, str(error), "use the Keepstep version that wrote it, or a newer one")
        return
    except JournalUnavailable as error:
        yield bad(check, str(error), "see that the database runs, and that its URL and password are right")
        return
    except (JournalCorrupt, ValueError) as error:
        yield bad(check, str(error), "put a copy of the journal back, or move it away and start with an empty one")
        return
    try:
        yield from _sound(opened.verify, state.journal if not database else None)
        last = next((entry.at_s for entry in opened.mentioning((), limit=1)), 0.0)
        if last > time.time() + JOURNAL_AHEAD_S:
            mend = "set the clock right (NTP); until then the server goes on from the journal's time"
            yield bad(
                "clock", f"the journal's last entry is of {moment(last)}, and it is {moment(time.time())} here", mend
            )
    except (JournalCorrupt, JournalUnavailable) as error:
        yield bad(check, str(error), "put a copy of the journal back, or move it away and start with an empty one")
    finally:
        opened.close()


def _sound(verify: Callable[[], int], file: Path | None) -> Iterator[Finding]:
    began_s = time.monotonic()
    count = verify()
    size = f", {_bytes(file.stat().st_size)}" if file is not None else ""
    yield good("journal", f"{count} entries{size}, the chain is sound (read in {time.monotonic() - began_s:.1f} s)")


def disk(state: StateDir) -> Iterator[Finding]:
    where = _nearest(state.path)
    seen = os.statvfs(where)
    free, whole = seen.f_bavail * seen.f_frsize, seen.f_blocks * seen.f_frsize
    text = f"{_bytes(free)} of {_bytes(whole)} free at {where}"
    mend = (
        "make room: a journal that cannot be written decides nothing; `keepstep journal compact` moves old entries away"
    )
    if free < FREE_BAD_BYTES:
        yield bad("disk space", text, mend)
    elif whole and free / whole < FREE_NOTE_SHARE:
        yield note("disk space", text, mend)
    else:
        yield good("disk space", text)


def file_system(state: StateDir) -> Iterator[Finding]:
    """Locks and the write-ahead log of SQLite need a local one."""
    kind = _file_system_of(_nearest(state.path).resolve())
    if kind in NETWORK_FILE_SYSTEMS:
        mend = "put --state-dir on a local disk, or use --database postgresql://… for what servers share"
        yield bad("file system", f"{state.path} is on {kind}, where locks and flushes cannot be relied on", mend)
    elif kind:
        yield good("file system", kind)


def _file_system_of(path: Path) -> str:
    best, kind = "", ""
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        _, where, what, *_ = line.split(" ")
        where = where.encode().decode("unicode_escape")
        if path.is_relative_to(where) and len(where) >= len(best):
            best, kind = where, what
    return kind


def flush_time(state: StateDir) -> Iterator[Finding]:
    """Every batch of facts costs one flush: it bounds how fast orders follow facts."""
    if not os.access(state.path, os.W_OK):
        return
    times = []
    with tempfile.TemporaryFile(dir=state.path) as file:
        for _ in range(FSYNC_TRIES):
            file.write(b"\0" * 4096)
            file.flush()
            began_s = time.monotonic()
            os.fsync(file.fileno())
            times.append(time.monotonic() - began_s)
    times.sort()
    middle, worst = times[len(times) // 2], times[-1]
    text = f"a flush to disk takes {middle * 1000:.1f} ms (worst of {FSYNC_TRIES}: {worst * 1000:.1f} ms)"
    mend = "use a local SSD for --state-dir: each decision waits for one flush"
    if middle > FSYNC_BAD_S:
        yield bad("flush time", text, mend)
    elif middle > FSYNC_NOTE_S:
        yield note("flush time", text, mend)
    else:
        yield good("flush time", text)


def file_limit(state: StateDir) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files, {'no limit' if hard == resource.RLIM_INFINITY else hard} if asked for"
    if hard != resource.RLIM_INFINITY and hard < FILES_NOTE:
        mend = f"raise it for a server of more than {hard - 100} clients: ulimit -Hn, or LimitNOFILE= in its unit"
        yield note("file limit", text, mend)
    else:
        yield good("file limit", text)


def extras(state: StateDir) -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if not _installed(module)]
        if missing:
            mend = f"pip install 'keepstep[{extra}]' where it is needed"
            yield note("optional parts", f"{extra}: {', '.join(missing)} not installed", mend)
    if all(_installed(module) for module in EXTRAS["server"]):
        yield good("optional parts", "what a server needs is installed")


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False  # its package is missing


def certificates(state: StateDir) -> Iterator[Finding]:
    files = {
        "identity": (state.path / "identity" / "certificate.pem", "join anew with `keepstep join`"),
        "authority": (state.path / "ca" / "authority.pem", "plan a new one: every node joins anew"),
        "server certificate": (state.path / "ca" / "server.pem", "restart the server: it makes a new one"),
    }
    present = {what: found for what, found in files.items() if found[0].exists()}
    if not present:
        return
    if not _installed("cryptography"):
        yield bad(
            "certificates", "there are certificates, and nothing to read them with", "pip install 'keepstep[server]'"
        )
        return
    for what, (file, mend) in present.items():
        yield _certificate(what, file, mend)


def _certificate(what: str, file: Path, mend: str) -> Finding:
    from keepstep.adapters.pki.describe import describe

    try:
        seen = describe(file)
    except (OSError, ValueError) as error:
        return bad("certificates", f"{what}: {file} cannot be read: {error}", mend)
    begins_s, ends_s = seen.begins_s, seen.expires_s
    now_s, until = time.time(), f"{what}: until {moment(ends_s)}"
    if ends_s <= now_s:
        return bad("certificates", f"{what}: expired on {moment(ends_s)}", mend)
    if begins_s > now_s:
        return bad("certificates", f"{what}: begins on {moment(begins_s)}", "set the clock of this machine right (NTP)")
    if ends_s - now_s < (ends_s - begins_s) * CERTIFICATE_NOTE_SHARE:
        return note("certificates", f"{until}, and nobody has renewed it", mend)
    return good("certificates", until)


def _nearest(path: Path) -> Path:
    """The path itself, or the parent that there is."""
    return next(one for one in (path, *path.parents) if one.exists())


def _bytes(count: int) -> str:
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
