"""One value in one file, kept rightly and in every wrong way that the harness must find. Tests of the harness itself."""

import contextlib
import hashlib
import mmap
import os
from collections import Counter
from pathlib import Path

from tests.crash.scenario import Tell

FIRST, LAST, LATER = 1, 3, 9
_SIZE_BYTES = 10_000


def payload(version: int) -> bytes:
    """Digest, version, filling."""
    body = version.to_bytes(4, "big") + bytes((version * 7 + at) % 251 for at in range(_SIZE_BYTES))
    return hashlib.blake2b(body, digest_size=16).digest() + body


class Careful:
    """Temporary file, fsync, rename, fsync of the directory; read back by digest. Nothing may be found."""

    clean: object = None

    def prepare(self, root: Path) -> None:
        self.put(root, FIRST)

    def run(self, root: Path, tell: Tell) -> None:
        for version in range(FIRST + 1, LAST + 1):
            try:
                self.put(root, version)
            except OSError as error:
                tell(f"failed {version} {error.errno}")
            else:
                tell(f"put {version}")
        with contextlib.suppress(OSError, ValueError):
            self.get(root)

    def recover(self, root: Path, tell: Tell) -> None:
        self.put(root, LAST + 1)
        tell(f"put {LAST + 1}")
        assert self.get(root) == LAST + 1

    def resume(self, root: Path, tell: Tell) -> None:
        self.settle(root)
        tell(f"put {self.get(root)}")
        self.recover(root, tell)

    def meanwhile(self, root: Path, tell: Tell) -> None:
        self.settle(root)
        tell(f"put {self.get(root)}")

    def check(self, root: Path, told: list[str]) -> None:
        promised = max([FIRST, *(int(line.split()[1]) for line in told if line.startswith("put"))])
        assert promised <= self.get(root) <= LAST + 1, (self.get(root), promised)

    def afterwards(self, root: Path) -> None:
        self.put(root, LATER)
        assert self.get(root) == LATER

    def footprint(self, root: Path) -> object:
        return sorted(Counter(path.suffix for path in root.iterdir()).items())

    # ---- what the broken ones do otherwise

    def put(self, root: Path, version: int) -> None:
        temporary = root / "value.tmp"
        try:
            self.write(temporary, payload(version))
            self.rename(temporary, root / "value")
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self.sync_directory(root)

    def rename(self, temporary: Path, path: Path) -> None:
        temporary.rename(path)

    def settle(self, root: Path) -> None:
        """What another process may have seen happen, and nobody synced."""
        self.sync_directory(root)

    def sync_directory(self, root: Path) -> None:
        fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def write(self, path: Path, data: bytes) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            self.write_all(fd, data)
            self.sync(fd)
        finally:
            os.close(fd)

    def write_all(self, fd: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            done += os.write(fd, data[done : done + 4096])

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def get(self, root: Path) -> int:
        """The version that is there, which is used. Raises OSError or ValueError instead of giving a wrong one."""
        data = self.read(root / "value")
        self.believe(data)
        version = int.from_bytes(data[16:20], "big")
        assert data == payload(version), "wrong bytes are used"
        return version

    def read(self, path: Path) -> bytes:
        return path.read_bytes()

    def believe(self, data: bytes) -> None:
        if hashlib.blake2b(data[16:], digest_size=16).digest() != data[:16]:
            raise ValueError("the value is damaged")


class NoDirectorySync(Careful):
    """The rename is not synced."""

    def sync_directory(self, root: Path) -> None:
        pass


class TrustsOthers(Careful):
    """A restart takes what it sees for durable."""

    def settle(self, root: Path) -> None:
        pass

    def recover(self, root: Path, tell: Tell) -> None:
        assert self.get(root) <= LAST + 1


class Reading(Careful):
    """Reads a value that another one has just put there, and relies on it."""

    def run(self, root: Path, tell: Tell) -> None:
        version = self.get(root)
        self.settle(root)
        tell(f"put {version}")

    def meanwhile(self, root: Path, tell: Tell) -> None:
        self.put(root, LAST)
        tell(f"put {LAST}")


class SyncsTooEarly(Reading):
    """Syncs first, and then looks: what comes between the two is relied on."""

    def run(self, root: Path, tell: Tell) -> None:
        self.settle(root)
        tell(f"put {self.get(root)}")


class SharesATemporary(Careful):
    """Two that write at once use the same temporary file."""

    def run(self, root: Path, tell: Tell) -> None:
        with contextlib.suppress(OSError):
            self.put(root, FIRST + 1)

    def meanwhile(self, root: Path, tell: Tell) -> None:
        self.put(root, LAST)


class NoFileSync(Careful):
    """The bytes are not synced before the name is."""

    def sync(self, fd: int) -> None:
        pass


class InPlace(Careful):
    """The value is overwritten where it is."""

    def put(self, root: Path, version: int) -> None:
        fd = os.open(root / "value", os.O_WRONLY | os.O_CREAT)
        try:
            self.write_all(fd, payload(version))
            os.fsync(fd)
        finally:
            os.close(fd)
        self.sync_directory(root)


class DirectOnly(Careful):
    """Takes direct I/O for durable."""

    def sync(self, fd: int) -> None:
        pass

    def write(self, path: Path, data: bytes) -> None:
        whole = mmap.mmap(-1, (len(data) + 4095) // 4096 * 4096)
        whole[: len(data)] = data
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_DIRECT", 0))
        try:
            os.write(fd, whole)
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)


class IgnoresShortWrites(Careful):
    """Does not look at what write returned."""

    def write_all(self, fd: int, data: bytes) -> None:
        for at in range(0, len(data), 4096):
            os.write(fd, data[at : at + 4096])


class SyncsAgain(Careful):
    """Takes a second fsync that succeeds for an answer."""

    def sync(self, fd: int) -> None:
        try:
            os.fsync(fd)
        except OSError:
            os.fsync(fd)


class HidesErrors(Careful):
    """A full disk is not noticed."""

    def write_all(self, fd: int, data: bytes) -> None:
        with contextlib.suppress(OSError):
            super().write_all(fd, data)


class DiesOfErrors(Careful):
    """A full disk ends the program."""

    def run(self, root: Path, tell: Tell) -> None:
        self.put(root, FIRST + 1)
        tell(f"put {FIRST + 1}")


class LeavesTemporaries(Careful):
    """What a killed process leaves is never cleared away."""

    def put(self, root: Path, version: int) -> None:
        temporary = root / f"value-{version}.tmp"
        self.write(temporary, payload(version))
        self.rename(temporary, root / "value")
        self.sync_directory(root)


class BelievesReads(Careful):
    """Does not check what it has read."""

    def believe(self, data: bytes) -> None:
        pass


class OneRead(BelievesReads):
    """Takes one read for the whole file."""

    def read(self, path: Path) -> bytes:
        fd = os.open(path, os.O_RDONLY)
        try:
            return os.read(fd, 1 << 20)
        finally:
            os.close(fd)


class Unlinks(Careful):
    """Removes the old value before the new one is there."""

    def rename(self, temporary: Path, path: Path) -> None:
        path.unlink(missing_ok=True)
        temporary.rename(path)


class PastTheLayer(Careful):
    """Changes files where the layer does not see it."""

    def run(self, root: Path, tell: Tell) -> None:
        super().run(root, tell)
        pid = os.fork()
        if pid == 0:
            os.environ.pop("LD_PRELOAD", None)
            os.execv("/bin/sh", ["/bin/sh", "-c", f"echo x > '{root}/unseen'"])
        os.waitpid(pid, 0)


class Hangs(Careful):
    """Tries a failing write again for ever."""

    def write_all(self, fd: int, data: bytes) -> None:
        done = 0
        while done < len(data):
            with contextlib.suppress(OSError):
                done += os.write(fd, data[done:])


class Mapped(Careful):
    """Writes through a shared mapping, which the layer cannot see."""

    def write_all(self, fd: int, data: bytes) -> None:
        os.ftruncate(fd, len(data))
        with open(f"/proc/self/fd/{fd}", "r+b") as file, mmap.mmap(file.fileno(), len(data)) as view:
            view[:] = data
