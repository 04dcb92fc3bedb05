"""The state directory: which files are in it, its token, its lock, and its address. Must not open the journal."""

import fcntl
import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from keepstep.adapters.server_link.address import PATH_LIMIT_BYTES


class StateDirInUse(RuntimeError):
    """Another server holds the state directory."""


def default_state_dir() -> Path:
    """``$KEEPSTEP_STATE_DIR``, else ``$XDG_STATE_HOME/keepstep``, else ``~/.local/state/keepstep``."""
    explicit = os.environ.get("KEEPSTEP_STATE_DIR")
    if explicit:
        return Path(explicit)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "keepstep"


@dataclass(frozen=True)
class StateDir:
    """Paths of one state directory. ``create`` must have run before a server or a client uses them."""

    path: Path

    @property
    def journal(self) -> Path:
        return self.path / "journal.db"

    @property
    def token_file(self) -> Path:
        return self.path / "token"

    @property
    def address_file(self) -> Path:
        """Where the server writes the address it listens on, once it does."""
        return self.path / "server.address"

    @property
    def lock_file(self) -> Path:
        return self.path / "server.lock"

    @property
    def log(self) -> Path:
        return self.path / "server.log"

    @property
    def repairs(self) -> Path:
        return self.path / "repairs.jsonl"

    @property
    def catalog(self) -> Path:
        """The site's own rows of the catalogue, where there are any."""
        return self.path / "catalog.toml"

    @property
    def bmcs(self) -> Path:
        """Where the BMCs are, where any are known."""
        return self.path / "bmc.toml"

    def create(self) -> None:
        """Make the directory, private to its owner. Raises ValueError where that is impossible."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ValueError(
                f"cannot make the state directory {self.path}: {error.strerror}; choose --state-dir"
            ) from error

    def default_address(self) -> str:
        """``unix:`` and a path: in the directory, or a short stand-in where that path is too long for a socket."""
        inside = self.path.resolve() / "server.sock"
        if len(os.fsencode(inside)) <= PATH_LIMIT_BYTES:
            return f"unix:{inside}"
        name = hashlib.blake2b(os.fsencode(inside), digest_size=12).hexdigest()
        return f"unix:/tmp/keepstep-{os.getuid()}/{name}.sock"

    def address(self) -> str | None:
        """What the running (or the last) server listens on; None before the first."""
        try:
            return self.address_file.read_text().strip() or None
        except FileNotFoundError:
            return None

    def is_coming_up(self) -> bool:
        """Whether the server that holds the lock does not listen yet: the lock is its first file, the address its last."""
        try:
            return self.address_file.stat().st_mtime_ns < self.lock_file.stat().st_mtime_ns
        except FileNotFoundError:
            return True

    @property
    def kept_file(self) -> Path:
        """Is there where the newest server was started by somebody who keeps it, and not by a run: that one comes back."""
        return self.path / "server.kept"

    @property
    def http_file(self) -> Path:
        """Where a server writes the URL of its API and dashboard, once they answer."""
        return self.path / "http.address"

    def http(self) -> str | None:
        """The URL of the API of the running (or the last) server that had one."""
        try:
            return self.http_file.read_text().strip() or None
        except FileNotFoundError:
            return None

    def http_served(self) -> str | None:
        """The same while that server runs. One that was killed leaves its file, and a stranger may have its port by now: he
        must not be shown a token."""
        try:
            fd = os.open(self.http_file, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(fd, 4096).decode().strip() or None
        finally:
            os.close(fd)
        return None

    def publish(self, file: Path, text: str) -> None:
        """Replace an address file in one step, so that no reader sees half of it."""
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_text(text + "\n")
        draft.replace(file)

    def token(self) -> str:
        """The shared secret; made on first use, readable by the owner only."""
        if not self.token_file.exists():
            self._make_token()
        return self.token_file.read_text().strip()

    def _make_token(self) -> None:
        draft = self.path / f".token.{os.getpid()}.{secrets.token_hex(4)}"
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(secrets.token_hex(32) + "\n")
        try:
            os.link(draft, self.token_file)
        except FileExistsError:
            pass  # another process made it first; its token is the token
        finally:
            draft.unlink()


class HttpSign:
    """The URL of a server, for the life of the server: the kernel lets go of the file however it ends."""

    def __init__(self, state: StateDir, url: str) -> None:
        self._state, self._url = state, url
        draft = state.http_file.with_name(f"{state.http_file.name}.{os.getpid()}")
        self._fd = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        os.write(self._fd, f"{url}\n".encode())
        draft.replace(state.http_file)

    def take_down(self) -> None:
        """Where another server has put up its own since, that stays."""
        if self._state.http() == self._url:
            self._state.http_file.unlink(missing_ok=True)
        os.close(self._fd)


class ServerLock:
    """Held for the life of a server. Released by the kernel however the server ends."""

    def __init__(self, state: StateDir) -> None:
        self._fd = os.open(state.lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._fd, 32, 0).decode(errors="replace").strip()
            os.close(self._fd)
            raise StateDirInUse(holder) from None
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._fd)
