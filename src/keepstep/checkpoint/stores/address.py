"""Where checkpoints are kept, as people write it: a path or a URL -> a Store. Owns what may stand in an address.

Addresses hold no secrets: credentials come from the environment (or from the machine's or pod's own role) only, so that an
address can be logged, listed and put into a commit record. Must not contact a store.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from msgspec import Struct

from keepstep.checkpoint.stores.port import Store
from keepstep.checkpoint.stores.posix import PosixStore, check_key

OPTIONS = {"s3": ("endpoint", "region"), "gs": ("endpoint",), "az": ("endpoint", "account")}
"""What may follow the ``?``, by scheme."""

VARIABLES = {
    ("s3", "endpoint"): ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    ("gs", "endpoint"): ("GOOGLE_BASE_URL",),
    ("az", "endpoint"): ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    ("az", "account"): ("AZURE_STORAGE_ACCOUNT_NAME",),
}
"""Where an option that the address leaves out is looked for, first hit first: those that make it another place."""

_OTHER_SPELLINGS = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "azure": "az", "abfs": "az", "abfss": "az", "wasb": "az"}
_SECRETS = ("key", "secret", "token", "sas", "sig", "password", "credential")


class Location(Struct, frozen=True, kw_only=True):
    """A place in an object store. Has no secrets in it."""

    scheme: str
    """``s3``, ``gs`` or ``az``."""
    bucket: str
    """Or container."""
    prefix: str = ""
    """Every key lies below it. No slash at either end."""
    endpoint: str = ""
    """URL of the service, where it is not the provider's own."""
    region: str = ""
    """Of the signature; the client finds AWS_REGION by itself."""
    account: str = ""
    """The storage account, of ``az``."""

    def name(self) -> str:
        """The address again, complete: with what came from the environment."""
        options = {"account": self.account, "endpoint": self.endpoint, "region": self.region}
        query = "&".join(f"{option}={value}" for option, value in options.items() if value)
        path = f"{self.bucket}/{self.prefix}" if self.prefix else self.bucket
        return f"{self.scheme}://{path}" + (f"?{query}" if query else "")


class Limits(Struct, frozen=True, kw_only=True):
    """How long an object store may take. Every call ends within about ``patience_s + request_s`` for each request it needs."""

    connect_s: float = 5.0
    request_s: float = 60.0
    """One HTTP request, with its body: a part of an upload, or 8 MiB of a read."""
    patience_s: float = 120.0
    """From the first try of a request on: after that, none is begun. For requests that may be repeated safely."""
    retries: int = 4


def open_store(address: str | os.PathLike[str], limits: Limits | None = None) -> Store:
    """The store at ``address``: a path, ``file:///path``, ``s3://bucket/prefix``, ``gs://…`` or ``az://container/prefix``.

    Contacts nobody. Raises ValueError for an address that cannot be right, ImportError if the object store client is not
    installed, OSError where a variable of the environment cannot be right.
    """
    text = os.fspath(address)
    if "://" not in text:
        return PosixStore(_checked_path(text))
    parts = urlsplit(text)
    if parts.scheme == "file":
        return PosixStore(_file_path(parts))
    location = parse_location(text, os.environ)
    try:
        from keepstep.checkpoint.stores.objects import ObjectStore
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise ImportError(f"{parts.scheme}:// needs an object store client: pip install 'keepstep[objects]'") from error
    return ObjectStore(location, limits or Limits())


def _checked_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError("the address of a store is empty, or holds a zero byte: give a directory or a URL")
    return Path(text)


def _file_path(parts: SplitResult) -> Path:
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise ValueError(
            "write file:// addresses as file:///absolute/path, with three slashes and nothing after the path"
        )
    return _checked_path(unquote(parts.path))


def parse_location(address: str, environment: Mapping[str, str]) -> Location:
    """Split an ``s3://``, ``gs://`` or ``az://`` address. Raises ValueError, whose text repeats no value from the address."""
    parts = urlsplit(address)
    if parts.scheme not in OPTIONS:
        hint = _OTHER_SPELLINGS.get(parts.scheme)
        known = "a path, file://, s3://, gs:// and az://"
        raise ValueError(
            f"{parts.scheme}:// is not a kind of store: " + (f"write {hint}://" if hint else f"there are {known}")
        )
    if "@" in parts.netloc:
        raise ValueError(_no_secrets(parts.scheme, "a user or password before @"))
    bucket = parts.netloc
    if not bucket or ":" in bucket or "/" in bucket or parts.fragment:
        raise ValueError(
            f"write {parts.scheme}://bucket/prefix: what follows the two slashes is the bucket or container, without a port"
            " (the service's own address goes behind it, as ?endpoint=https://host:port)"
        )
    prefix = parts.path.strip("/")
    if prefix:
        check_key(prefix)
    options = _options(parts, environment)
    if parts.scheme == "az" and not options["account"]:
        raise ValueError("az:// needs the storage account: append ?account=NAME, or set AZURE_STORAGE_ACCOUNT_NAME")
    return Location(scheme=parts.scheme, bucket=bucket, prefix=prefix, **options)


def _options(parts: SplitResult, environment: Mapping[str, str]) -> dict[str, str]:
    allowed = OPTIONS[parts.scheme]
    given = parse_qsl(parts.query, keep_blank_values=True)
    for option, _ in given:
        if any(word in option.lower() for word in _SECRETS):
            raise ValueError(_no_secrets(parts.scheme, f"the option {option}"))
        if option not in allowed:
            raise ValueError(f"{parts.scheme}:// has no option {option}: there are {', '.join(allowed)}")
    if len(dict(given)) != len(given):
        raise ValueError("an option is given twice in the address")
    options = dict(given)
    for option in allowed:
        names = VARIABLES.get((parts.scheme, option), ())
        options.setdefault(option, next((environment[name] for name in names if environment.get(name)), ""))
    _check_endpoint(options["endpoint"], parts.scheme)
    return options


def _check_endpoint(endpoint: str, scheme: str) -> None:
    if not endpoint:
        return
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.netloc or url.query or url.fragment:
        raise ValueError(
            "an endpoint is the URL of the service: http:// or https://, a host, perhaps a port and a path"
        )
    if "@" in url.netloc:
        raise ValueError(_no_secrets(scheme, "a user or password in the endpoint"))


def _no_secrets(scheme: str, what: str) -> str:
    where = {
        "s3": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
        "gs": "GOOGLE_APPLICATION_CREDENTIALS",
        "az": "AZURE_STORAGE_ACCOUNT_KEY",
    }
    return (
        f"the address holds {what}: addresses are written to logs and records, so credentials do not belong there."
        f" Set {where[scheme]} in the environment"
    )
