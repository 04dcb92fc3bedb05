"""``alerts.toml`` in the state directory: who is told of what, and how. Owns the spelling, and saying what is wrong with it."""

import tomllib
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from keepstep.server.alerts import Rules
from keepstep.telemetry import LEVELS, Level

_KEYS = (
    "there may stand min_level, repeat_s, certificate_s, journal_s, [webhook.NAME], [email.NAME], [heartbeat]; "
    "see docs/how-to/monitor-and-alert.md"
)


class Webhook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    secret_file: str = ""
    """Relative to the state directory; its text signs each request."""
    min_level: Level = "warning"
    template: str = ""
    """File of the site's own body, relative to the state directory."""
    timeout_s: float = 10.0


class Email(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: str
    sender: str
    to: tuple[str, ...]
    port: int = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password_file: str = ""
    ca_file: str = ""
    """Authorities that sign the mail server's certificate; empty for those of the system."""
    min_level: Level = "page"
    template: str = ""
    timeout_s: float = 20.0


class Heartbeat(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A dead man's signal: whoever stops hearing it knows that nobody would be told of anything."""

    url: str
    every_s: float = 60.0
    timeout_s: float = 10.0


class AlertFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    min_level: Level = "warning"
    repeat_s: float = Rules().repeat_s
    certificate_s: float = Rules().certificate_s
    journal_s: float = Rules().journal_s
    webhook: dict[str, Webhook] = {}
    email: dict[str, Email] = {}
    heartbeat: Heartbeat | None = None

    @property
    def rules(self) -> Rules:
        """The least urgent of what anybody wants: each channel leaves out what is below its own level."""
        wanted = [hook.min_level for hook in self.webhook.values()] + [mail.min_level for mail in self.email.values()]
        least = min(map(LEVELS.index, wanted), default=0)
        return Rules(
            min_level=LEVELS[max(least, LEVELS.index(self.min_level))],
            repeat_s=self.repeat_s,
            certificate_s=self.certificate_s,
            journal_s=self.journal_s,
        )


def read_alert_file(path: Path) -> AlertFile:
    """What the file says; nobody is told of anything where there is none. Raises ValueError that names the line or the key."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return AlertFile()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    try:
        file = msgspec.convert(tomllib.loads(text), AlertFile)
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise ValueError(f"{path}: {error}; {_KEYS}") from None
    _check(path, file)
    return file


def _check(path: Path, file: AlertFile) -> None:
    for key in ("repeat_s", "certificate_s", "journal_s"):
        if getattr(file, key) < 0:
            raise ValueError(f"{path}: {key} is {getattr(file, key):g}; it cannot be negative (0 switches it off)")
    for name, hook in file.webhook.items():
        where = f"{path}, webhook {name}"
        _url(where, hook.url)
        _positive(where, "timeout_s", hook.timeout_s)
    for name, mail in file.email.items():
        where = f"{path}, email {name}"
        _positive(where, "timeout_s", mail.timeout_s)
        _mail(where, mail)
    if file.heartbeat is not None:
        _url(f"{path}, heartbeat", file.heartbeat.url)
        _positive(f"{path}, heartbeat", "every_s", file.heartbeat.every_s)
        _positive(f"{path}, heartbeat", "timeout_s", file.heartbeat.timeout_s)


def _mail(where: str, mail: Email) -> None:
    if not mail.to or not all("@" in address for address in (*mail.to, mail.sender)):
        raise ValueError(f"{where}: sender and every address of `to` need an @, and somebody must stand in `to`")
    if any(c in address for address in (*mail.to, mail.sender) for c in "\r\n"):
        raise ValueError(f"{where}: an address has a line break in it")
    if not 0 < mail.port < 65536:
        raise ValueError(f"{where}: port {mail.port} is none; usual are 587 (starttls), 465 (tls), 25 (none)")
    if bool(mail.user) != bool(mail.password_file):
        raise ValueError(f"{where}: user and password_file belong together")
    if mail.user and mail.security == "none":
        raise ValueError(f'{where}: a password is not sent in the clear; use security = "starttls" or "tls"')


def _positive(where: str, key: str, value: float) -> None:
    if value <= 0:
        raise ValueError(f"{where}: {key} is {value:g}; it must be above 0")


def _url(where: str, url: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if not (good and url.isascii() and url.isprintable() and " " not in url):
        raise ValueError(f"{where}: {url!r} is no http:// or https:// address (of plain ASCII, the rest as %XX)")
    if parts.username is not None:
        raise ValueError(f"{where}: a user in the address would not be sent; use a secret path, or secret_file")
