"""Notices as HTTP POSTs, signed. Owns the request and what an answer means; retries and queues are the caller's.

Built on the standard library alone, so that an installation without extras can call for help too.
"""

import hashlib
import hmac
import http.client
import json
import ssl
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from keepstep import __version__
from keepstep.telemetry import Alert, DeliveryFailed, notice_template

SIGNATURE = "Keepstep-Signature"
"""``t=<seconds since the epoch>,v1=<hex>``: HMAC-SHA256 with the shared secret over ``<t>.<body>``."""
ID = "Keepstep-Alert-Id"
ANSWER_MAX_BYTES = 4096
LATER = (408, 425, 429)
"""Refusals that pass; any other 4xx is for good."""


def signature(secret: bytes, at_s: int, body: bytes) -> str:
    """The value of the header, for whoever signs or checks."""
    digest = hmac.new(secret, b"%d.%b" % (at_s, body), hashlib.sha256).hexdigest()
    return f"t={at_s},v1={digest}"


class WebhookChannel:
    """Meets telemetry.Channel."""

    def __init__(
        self, name: str, url: str, secret: bytes = b"", template: str = "", timeout_s: float = 10.0
    ) -> None:  # fmt: skip
        self.name = name
        self._url = url
        self._secret = secret
        self._template = notice_template(template) if template else None
        self._timeout_s = timeout_s

    def send(self, alert: Alert) -> None:
        body = self._body(alert)
        headers = {"Content-Type": "application/json", ID: alert.id}
        if self._secret:
            headers[SIGNATURE] = signature(self._secret, int(time.time()), body)
        request("POST", self._url, body, headers, self._timeout_s)

    def _body(self, alert: Alert) -> bytes:
        """All fields as JSON; or the site's own template, where each ``${field}`` becomes the inside of a JSON string."""
        if self._template is None:
            return msgspec.json.encode(alert)
        fields = {name: json.dumps(str(value))[1:-1] for name, value in msgspec.to_builtins(alert).items()}
        return self._template.substitute(fields).encode()


def request(method: str, url: str, body: bytes, headers: Mapping[str, str], timeout_s: float) -> None:
    """One request; 2xx is the only good answer, and a redirect is none. Raises DeliveryFailed."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port
    if parts.scheme == "https":
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            host, port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method, target, body, {"User-Agent": f"keepstep/{__version__}", **headers})
        answer = connection.getresponse()
        answer.read(ANSWER_MAX_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise DeliveryFailed(f"{host}: {error or type(error).__name__}") from error
    finally:
        connection.close()
    if not 200 <= answer.status < 300:
        again = answer.status >= 500 or answer.status in LATER
        raise DeliveryFailed(f"{host} answered {answer.status} {answer.reason}", again=again)
