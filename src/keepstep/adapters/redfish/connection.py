"""The connection to one Redfish service: session, certificate, limits of time. Owns what may raise; must not judge answers."""

import json
import logging
import re
import time
from typing import Any, cast
from urllib.parse import urlsplit

import requests
import sushy
from requests.adapters import HTTPAdapter
from sushy import auth, connector, exceptions

from keepstep.evidence.bmc.bundle import bodies
from keepstep.evidence.document import Document

CONNECT_S = 4.0
READ_S = 10.0
RETRY_DELAY_S = 0.3
MAX_BODY_BYTES = 16 * 1024 * 1024
_PIECE_BYTES = 65_536
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")

logging.getLogger("sushy").setLevel(logging.CRITICAL)  # what it finds is told by the look, once


TRIPS = (
    exceptions.SushyError, requests.RequestException, ValueError, AttributeError, TypeError, KeyError, RecursionError,
)  # fmt: skip
"""What sushy raises: its own errors, and those that it stumbles into where an answer is no Redfish."""


class NotReachable(OSError):
    """No answer that Redfish could give: no connection, no session, a wrong certificate."""


class NotReadable(ValueError):
    """The service answered, and not with a resource: an error, or no JSON."""


class NotThere(NotReadable):
    """The service has no such resource."""


class _Bounded(HTTPAdapter):
    """Reads an answer up to its limits of size and of time, and accepts one certificate only where a fingerprint is given."""

    def __init__(self, fingerprint: str = "") -> None:
        self._fingerprint = fingerprint
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **keywords: Any) -> None:
        super().init_poolmanager(*arguments, assert_fingerprint=self._fingerprint or None, **keywords)

    def send(self, request: requests.PreparedRequest, *arguments: Any, **keywords: Any) -> requests.Response:
        until_s = time.monotonic() + CONNECT_S + READ_S
        response = super().send(request, *arguments, **keywords)
        found = bytearray()
        for piece in response.iter_content(_PIECE_BYTES):
            found += piece
            if len(found) > MAX_BODY_BYTES or time.monotonic() > until_s:
                response.close()
                raise requests.exceptions.ContentDecodingError(
                    f"{request.url}: the answer does not end within {READ_S:g} s and {MAX_BODY_BYTES >> 20} MiB",
                    request=request,
                )
        response._content = bytes(found)
        return response


class _Elsewhere(HTTPAdapter):
    """Any other host. A link or a redirection must not carry our session to somebody whom the controller names."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        raise requests.exceptions.InvalidURL(
            f"{request.url} leads to another host and is not followed", request=request
        )


class _Nobody(auth.AuthBase):  # type: ignore[misc]
    """No user: for services that ask for none."""

    def _do_authenticate(self) -> None:
        pass

    def can_refresh_session(self) -> bool:
        return False


def fingerprint_of(text: str) -> str:
    """A SHA-256 fingerprint as hexadecimal digits, whatever stands between them. Raises ValueError for anything else."""
    digits = (
        text.strip()
        .lower()
        .removeprefix("sha256:")
        .removeprefix("sha256 fingerprint=")
        .replace(":", "")
        .replace(" ", "")
    )
    if _FINGERPRINT.fullmatch(digits) is None:
        raise ValueError(
            f"{text!r} is no SHA-256 fingerprint: 64 digits, as `openssl x509 -fingerprint -sha256` prints"
        )
    return digits


class Connection:
    """Made when it is first needed, and again after it was lost."""

    def __init__(self, url: str, user: str, password: str, fingerprint: str = "", verify: bool | str = True) -> None:
        parts = urlsplit(url if "//" in url else f"https://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a Redfish service: https://host[:port]")
        if "@" in parts.netloc:
            raise ValueError(
                "the address holds a user; write https://host[:port], and user and password_file beside it"
            )
        if fingerprint and parts.scheme != "https":
            raise ValueError(f"{url!r} has no certificate that a fingerprint could be of; write https://")
        self.url = f"{parts.scheme}://{parts.netloc}".lower()
        self._user, self._password = user, password
        self._fingerprint = fingerprint_of(fingerprint) if fingerprint else ""
        self._verify = False if self._fingerprint else verify
        self._root: sushy.Sushy | None = None
        self._connector: connector.Connector | None = None

    def root(self) -> sushy.Sushy:
        """The service's root, in a session. Raises NotReachable."""
        if self._root is None:
            self._connector = connector.Connector(
                self.url, verify=self._verify, server_side_retries=1, server_side_retries_delay=RETRY_DELAY_S,
                default_request_timeout=READ_S, connect_timeout=CONNECT_S,
            )  # fmt: skip
            session = self._connector._session  # sushy offers no other place for a certificate and for limits
            session.mount("https://", _Elsewhere())
            session.mount("http://", _Elsewhere())
            session.mount(f"{self.url}/", _Bounded(self._fingerprint))
            mechanism = auth.SessionOrBasicAuth(self._user, self._password) if self._user else _Nobody()
            try:
                self._root = sushy.Sushy(self.url, auth=mechanism, connector=self._connector)
            except TRIPS as error:
                self.drop()
                raise NotReachable(f"{self.url}: {_reason(error)}") from error
        return self._root

    def get(self, path: str, deadline_s: float) -> Any:
        """The body at a path. Raises NotReachable or NotReadable; what is broken JSON is salvaged as far as it goes."""
        self.root()
        assert self._connector is not None
        left_s = deadline_s - time.monotonic()
        if left_s <= 0:
            raise NotReadable(f"{path}: no time left for it in this look")
        try:
            response = self._connector.get(_on_this_host(path), timeout=min(READ_S, max(left_s, 0.5)))
        except exceptions.ResourceNotFoundError:
            raise NotThere(f"{path}: not there") from None
        except exceptions.HTTPError as error:
            raise NotReadable(f"{path}: {_reason(error)}") from error
        except (exceptions.SushyError, requests.RequestException) as error:
            self.drop()
            raise NotReachable(f"{self.url}: {_reason(error)}") from error
        return parsed(path, cast(bytes, response.content))

    def drop(self) -> None:
        """Forget the session. The next call makes another one."""
        if self._connector is not None:
            self._connector.close()
        self._root, self._connector = None, None

    def close(self) -> None:
        """End the session, so that it does not use up the few that a controller has."""
        root = self._root
        if root is not None:
            try:
                session = root._auth
                if session is not None:
                    session.close()
            except TRIPS:
                pass  # it ends by itself after a while
        self.drop()


def _on_this_host(link: str) -> str:
    """Links may be whole addresses; what they say of a host does not count."""
    try:
        parts = urlsplit(link)
    except ValueError as error:
        raise NotReadable(f"{link[:200]!r} is no link: {error}") from None
    return f"/{parts.path.lstrip('/')}" + (f"?{parts.query}" if parts.query else "")


def parsed(path: str, content: bytes) -> Any:
    """JSON, or the whole resources inside of what is not quite JSON. Raises NotReadable."""
    if len(content) > MAX_BODY_BYTES:
        raise NotReadable(f"{path}: {len(content)} bytes is more than any resource has")
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        found, _ = bodies(Document(path, content))
        if not found:
            raise NotReadable(f"{path}: no valid JSON") from None
        return [body.body for body in found]


def _reason(error: Exception) -> str:
    text = str(error)
    for word, said in (("fingerprint", "the certificate has another fingerprint than the one that is configured"),
                       ("CERTIFICATE_VERIFY_FAILED", "the certificate is not trusted; give its fingerprint"),
                       ("timed out", "timed out"), ("refused", "connection refused")):  # fmt: skip
        if word.lower() in text.lower():
            return said
    if isinstance(error, exceptions.AccessError):
        return "user or password is not accepted"
    return text.splitlines()[0][:200] if text else type(error).__name__
