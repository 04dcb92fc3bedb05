"""A store in a bucket of S3, Google Cloud Storage or Azure Blob Storage. Owns how the contract is kept over HTTP.

The only module that imports obstore. Must not know what the bytes mean, and must not hold credentials: obstore takes them
from the environment or the machine's role. Do not use a store across ``fork``: its client runs threads.

Requests that change nothing when they are repeated (reads, listings, deletes, parts of uploads, hints) are repeated after a
failure, a bounded number of times, with growing and jittered pauses. ``create`` is sent **once**: a repetition could be
answered "taken" because of our own first try. So False means that somebody else was first, and an OSError (a timeout, a
broken connection, a server error) leaves open whether the object is there: the caller reads it back.
"""

import concurrent.futures
import contextlib
import errno
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError
from obstore.store import AzureStore, GCSStore, S3Store

from keepstep.checkpoint.stores.address import Limits, Location
from keepstep.checkpoint.stores.port import Entry
from keepstep.checkpoint.stores.posix import check_key

if TYPE_CHECKING:
    from obstore import WritableFile
    from obstore.store import ClientConfig, RetryConfig

PART_BYTES = 8 * 1024 * 1024
"""Size of a part of an upload, unless the object would need too many, and of one ranged read."""
MAX_PARTS = 9_000
"""S3 and GCS end at 10,000; ``size_bytes`` of a writer is only about right."""
PARTS_IN_FLIGHT = 3
READS_IN_FLIGHT = 4
MAX_READ_BYTES = 256 * 1024 * 1024
"""Objects that are read whole are small. A damaged or hostile store does not get to fill our memory."""
_LIST_PAGE = 1000
_WRITES = ("create", "upload", "write", "delete")

_Client = S3Store | GCSStore | AzureStore


class _Words:
    """Turns what obstore raises into an OSError that says what to do. Repeats no URL: the store's name says where."""

    def __init__(self, location: Location) -> None:
        self._name = location.name()
        self._kind = "container" if location.scheme == "az" else "bucket"
        self._variables = {
            "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (AWS_SESSION_TOKEN too, if they are temporary)",
            "gs": "GOOGLE_APPLICATION_CREDENTIALS",
            "az": "AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_KEY or AZURE_CLIENT_ID and its companions",
        }[location.scheme]

    @contextlib.contextmanager
    def told(self, what: str, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            # One with a number has been explained already.
            raise error if error.errno is not None else self._explain(error, what, key) from None
        except BaseError as error:
            raise self._explain(error, what, key) from None

    @staticmethod
    def is_bucket_missing(text: str) -> bool:
        return bool(re.search("NoSuchBucket|ContainerNotFound|specified (container|bucket) does not exist", text))

    def _explain(self, error: Exception, what: str, key: str) -> OSError:
        text = str(error)
        number, advice = self._diagnose(error, text)
        if number in (errno.ETIMEDOUT, errno.EIO) and what in _WRITES:
            advice += ". Whether it was done is open: read it back"
        return OSError(number, f"{self._name}: cannot {what} {key or 'it'}: {advice} ({_gist(text)})")

    def _diagnose(self, error: Exception, text: str) -> tuple[int, str]:
        found = re.search(r"status code: (\d{3})", text)
        status = int(found[1]) if found else 0
        table = (
            (bool(re.search("/latest/api/token|/metadata/identity|/computeMetadata/", text)), errno.EACCES,
             f"there are no credentials: set {self._variables}, or give this machine a role"),
            (self.is_bucket_missing(text), errno.ENODEV,
             f"there is no such {self._kind}: create it, or correct the address"),
            (isinstance(error, FileNotFoundError), errno.ENOENT, "it is not there"),
            (type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or status in (401, 403), errno.EACCES,
             f"access is refused: check {self._variables}, and that they allow reading, writing, listing and deleting there"),
            (isinstance(error, NotSupportedError) or "non-partial response" in text, errno.EOPNOTSUPP,
             "this server does not do what checkpoints need: run the self-test, or use another store"),
            ("kind: Timeout" in text or "TimedOut" in text, errno.ETIMEDOUT,
             "no answer in time"),
            ("kind: Connect" in text, errno.EHOSTUNREACH,
             "the server cannot be reached: check the endpoint, the network, and whether the server is up"),
            (isinstance(error, AlreadyExistsError), errno.EBUSY,
             "another request, a lock or a lease is in the way: try again"),
            (status in (429, 503), errno.EBUSY, "the server is overloaded: save less often, or ask for more"),
            (status == 507 or "QuotaExceeded" in text, errno.ENOSPC, "the store is full"),
        )  # fmt: skip
        for applies, number, advice in table:
            if applies:
                return number, advice
        return errno.EIO, "the server or the connection failed"


def _gist(text: str) -> str:
    """What a server or client said, in one line."""
    code, message = (re.search(f"<{tag}>([^<]*)<", text) for tag in ("Code", "Message"))
    if code:
        return " ".join(f"{code[1]}: {message[1]}".split())[:200] if message else code[1]
    line = text.partition("\n\nDebug source")[0]
    kind = re.search(r"kind: (\w+)", text)
    line = re.sub(r"(Error performing \w+ )?https?://\S+", "", line) + (f", {kind[1]}" if kind else "")
    return " ".join(line.split())[:200]


class ObjectStore:
    """See ``Store``. ``finish`` of a writer is a guard, not a lock: an upload in parts cannot be made conditional at every
    provider, so the key is looked up just before. Names of streamed objects must be unique; only ``create`` decides races.

    An upload that is aborted or dies leaves nothing under its key, but its parts may stay, invisible and paid for: give the
    bucket a lifecycle rule that removes incomplete uploads after a day or two (Azure does that by itself after a week).
    """

    def __init__(self, location: Location, limits: Limits) -> None:
        self.name = location.name()
        self._words = _Words(location)
        try:
            self._once = _connect(location, limits, retries=0)
            self._client = _connect(location, limits, retries=limits.retries)
        except BaseError as error:
            # Nobody has been contacted yet.
            advice = "correct or unset the environment variable that does not suit"
            raise OSError(errno.EINVAL, f"{self.name}: {advice} ({_gist(str(error))})") from None

    def create(self, key: str, data: Any) -> bool:
        """For small objects: ``data`` is copied, and sent in one request."""
        check_key(key)
        # The client may hold on to the buffer for a moment after an error, so it gets one of its own.
        copy = bytes(memoryview(data).cast("B"))
        with self._words.told("create", key):
            try:
                obstore.put(self._once, key, copy, mode="create", use_multipart=False)
            except AlreadyExistsError:
                pass
            else:
                return True
        if self.size(key) is None:
            # Some servers answer "conflict" to a create that met a delete or another create: nobody need have won.
            raise OSError(errno.EBUSY, f"{self.name}: a request in conflict kept {key} from being created: try again")
        return False

    def writer(self, key: str, size_bytes: int) -> "ObjectUpload":
        return ObjectUpload(self, check_key(key), size_bytes)

    def read(self, key: str) -> bytes:
        check_key(key)
        with self._words.told("read", key):
            answer = obstore.get(self._client, key)
            size = answer.meta["size"]
            if size > MAX_READ_BYTES:
                raise OSError(errno.EFBIG, f"{self.name}: {key} has {size} bytes, too many to read at once")
            return bytes(answer.bytes())

    def read_into(self, key: str, offset: int, view: memoryview) -> None:
        check_key(key)
        out = view.cast("B")
        pieces = [(at, min(at + PART_BYTES, len(out))) for at in range(0, len(out), PART_BYTES)]

        def fetch(piece: tuple[int, int]) -> None:
            start, end = piece
            self._read_piece(key, offset + start, out[start:end])

        if len(pieces) == 1:
            fetch(pieces[0])
        elif pieces:
            with concurrent.futures.ThreadPoolExecutor(min(READS_IN_FLIGHT, len(pieces))) as pool:
                waiting = [pool.submit(fetch, piece) for piece in pieces]
                try:
                    for future in waiting:
                        future.result()
                finally:
                    pool.shutdown(cancel_futures=True)

    def _read_piece(self, key: str, offset: int, view: memoryview) -> None:
        with self._words.told("read", key):
            try:
                found = memoryview(obstore.get_range(self._client, key, start=offset, length=len(view)))
            except BaseError:
                size = self.size(key)
                if size is None or size >= offset + len(view):
                    raise
                found = memoryview(b"")
            if len(found) != len(view):
                end = offset + len(view)
                raise OSError(errno.EIO, f"{self.name}: {key} ends before byte {end}, where more was saved")
            view[:] = found

    def size(self, key: str) -> int | None:
        check_key(key)
        with self._words.told("look up", key):
            try:
                return int(obstore.head(self._client, key)["size"])
            except FileNotFoundError:
                pass
            # The answer to HEAD has no body, so it cannot say whether it was the object or the bucket that is not there.
            try:
                return int(obstore.get(self._client, key).meta["size"])
            except FileNotFoundError as error:
                if self._words.is_bucket_missing(str(error)):
                    raise
                return None

    def list(self, prefix: str) -> Iterator[Entry]:
        """In memory before the first one is handed out: not every server lists in order of the keys."""
        if prefix:
            check_key(prefix.removesuffix("/"))
        found: list[Entry] = []
        with self._words.told("list", prefix):
            for page in obstore.list(self._client, prefix or None, chunk_size=_LIST_PAGE):
                found += [Entry(item["path"], int(item["size"])) for item in page]
        found.sort()
        return iter(found)

    def delete(self, key: str) -> None:
        check_key(key)
        with self._words.told("delete", key):
            try:
                obstore.delete(self._client, key)
            except FileNotFoundError as error:
                if self._words.is_bucket_missing(str(error)):
                    raise

    def tidy(self, idle_s: float) -> None:
        """Nothing: half written uploads cannot be listed through obstore. The bucket's lifecycle rule removes them."""

    def hint(self, key: str, data: bytes) -> None:
        check_key(key)
        with self._words.told("write", key):
            obstore.put(self._client, key, bytes(data), use_multipart=False)

    def _open_upload(self, key: str, part_bytes: int) -> "WritableFile":
        with self._words.told("upload", key):
            # obstore counts the parts under way before it adds one, hence the - 1.
            return obstore.open_writer(self._client, key, buffer_size=part_bytes, max_concurrency=PARTS_IN_FLIGHT - 1)


class ObjectUpload:
    """See ``ObjectWriter``. Holds at most ``PARTS_IN_FLIGHT`` + 2 parts in memory; blocks are copied."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        self._store = store
        self._key = key
        self._part_bytes = part_bytes_for(size_bytes)
        self._file: WritableFile | None = store._open_upload(key, self._part_bytes)

    def write(self, block: Any) -> None:
        view = memoryview(block).cast("B")
        # Taken away until all is written: an upload with a gap in it must not be finished.
        file = self._take()
        with self._store._words.told("upload", self._key):
            for at in range(0, len(view), self._part_bytes):
                # obstore goes on reading the buffer after it returns.
                file.write(bytes(view[at : at + self._part_bytes]))
        self._file = file

    def finish(self) -> None:
        file = self._take()
        if self._store.size(self._key) is not None:
            raise FileExistsError(errno.EEXIST, f"{self._store.name}: {self._key} is taken; nothing was changed")
        with self._store._words.told("upload", self._key):
            file.close()

    def _take(self) -> "WritableFile":
        file, self._file = self._file, None
        if file is None:
            raise OSError(errno.EBADF, f"the upload of {self._key} is over, or failed before: begin a new one")
        return file

    def abort(self) -> None:
        # Its destructor ends what is under way. Closing it would complete the upload.
        self._file = None

    def __enter__(self) -> "ObjectUpload":
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


def part_bytes_for(size_bytes: int) -> int:
    """Size of the parts of an object of about this size: whole MiB, at most MAX_PARTS of them."""
    mebibyte = 1024 * 1024
    return max(PART_BYTES, -(-size_bytes // (MAX_PARTS * mebibyte)) * mebibyte)


def _connect(location: Location, limits: Limits, *, retries: int) -> _Client:
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=limits.connect_s),
        "timeout": timedelta(seconds=limits.request_s),
        "allow_http": location.endpoint.startswith("http://"),
    }
    retry: RetryConfig = {
        "max_retries": retries,
        "retry_timeout": timedelta(seconds=limits.patience_s),
        "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    config: dict[str, Any] = {}
    if location.scheme == "s3":
        config = {"conditional_put": "etag", "disable_bulk_delete": True}
        if location.endpoint:
            # Both: the second one is otherwise taken from the environment, and wins.
            config |= {"endpoint": location.endpoint, "aws_endpoint_url_s3": location.endpoint}
        if location.region:
            config["region"] = location.region
    elif location.scheme == "gs":
        config = {"base_url": location.endpoint} if location.endpoint else {}
    else:
        config = {"endpoint": location.endpoint} if location.endpoint else {}
        config |= {"account_name": location.account} if location.account else {}
    kind = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}[location.scheme]
    made: _Client = kind(
        location.bucket,
        prefix=location.prefix or None,
        client_options=client,
        retry_config=retry,
        **config,
    )
    return made
