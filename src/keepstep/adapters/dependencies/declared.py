"""What a user declares: dependencies and mounts. Owns the fields and what may stand in them; looks at nothing."""

from dataclasses import dataclass, field
from typing import Literal, get_args
from urllib.parse import urlsplit

Kind = Literal["http", "tcp", "dns", "object", "store"]
KINDS: tuple[str, ...] = get_args(Kind)
STORE_EVERY_S = 300.0
STORE_DEADLINE_S = 30.0
_SCHEMES = {"http": ("http", "https"), "object": ("http", "https"), "tcp": ("tcp",)}


@dataclass(frozen=True, kw_only=True)
class Dependency:
    """Raises ValueError for what cannot be looked at."""

    name: str
    kind: Kind
    url: str
    """``http(s)://…`` for http and object, ``tcp://host:port``, a bare name for dns, the address of checkpoints for store."""
    every_s: float = 30.0
    deadline_s: float = 5.0
    slow_s: float = 0.0
    """Later than this is slow; 0 takes half of the deadline."""
    headers: dict[str, str] = field(default_factory=dict)
    """Of an HTTP request. ``$NAME`` as a value is taken from the agent's environment."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is {self.kind!r}; it is one of {', '.join(KINDS)}")
        if not self.url:
            raise ValueError("url is missing")
        if self.kind == "dns":
            if "/" in self.url or ":" in self.url:
                raise ValueError(f"url is {self.url!r}; for kind 'dns' it is a host name")
        elif self.kind != "store":
            self._check_url()
        check_times(self.every_s, self.deadline_s)

    def _check_url(self) -> None:
        parts = urlsplit(self.url)
        schemes = _SCHEMES[self.kind]
        try:
            port = parts.port
        except ValueError as error:
            raise ValueError(f"url is {self.url!r}: {str(error)[:1].lower()}{str(error)[1:]}") from None
        if parts.scheme not in schemes or not parts.hostname or (self.kind == "tcp" and port is None):
            forms = " or ".join(f"{scheme}://HOST" + (":PORT" if self.kind == "tcp" else "/…") for scheme in schemes)
            raise ValueError(f"url is {self.url!r}; for kind {self.kind!r} write {forms}")

    @property
    def pause_s(self) -> float:
        """Between two looks. A look at a store starts a whole interpreter with a client: too dear for every half minute."""
        return max(self.every_s, STORE_EVERY_S) if self.kind == "store" else self.every_s

    @property
    def limit_s(self) -> float:
        return max(self.deadline_s, STORE_DEADLINE_S) if self.kind == "store" else self.deadline_s

    @property
    def slow_after_s(self) -> float:
        return self.slow_s or self.limit_s / 2


@dataclass(frozen=True, kw_only=True)
class Mount:
    """Raises ValueError for what cannot be looked at."""

    name: str
    path: str
    every_s: float = 30.0
    deadline_s: float = 10.0
    slow_s: float = 0.0
    write: bool = False
    """Also write, read back and remove a small file."""
    file_system: str = ""
    """Kind that must be mounted there (``nfs4``, ``lustre``): an empty mount point looks like a healthy directory."""

    def __post_init__(self) -> None:
        if not self.path.startswith("/"):
            raise ValueError(f"path is {self.path!r}; write an absolute path")
        check_times(self.every_s, self.deadline_s)

    @property
    def slow_after_s(self) -> float:
        return self.slow_s or self.deadline_s / 2


def check_times(every_s: float, deadline_s: float) -> None:
    if not 1 <= every_s <= 86_400:
        raise ValueError(f"every_s is {every_s:g}; write 1 to 86400 seconds")
    if not 0 < deadline_s <= 600:
        raise ValueError(f"deadline_s is {deadline_s:g}; write more than 0 and at most 600 seconds")
