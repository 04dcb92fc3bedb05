"""The dead man's signal: as long as the loop goes round and the journal takes entries, somebody elsewhere hears from us.

It is sent because a moment was healthy, never by a timer of its own: a server that stands still, or that cannot keep what it
decides, falls silent.
"""

import logging
import threading

from keepstep.adapters.webhook.channel import request
from keepstep.telemetry import DeliveryFailed

log = logging.getLogger("keepstep.alerts")


class DeadMan:
    def __init__(self, url: str, every_s: float, timeout_s: float) -> None:
        self._url = url
        self._every_s = every_s
        self._timeout_s = timeout_s
        self._sent_s: float | None = None
        self._sending: threading.Thread | None = None
        self._failing = False

    def tick(self, now_s: float, healthy: bool) -> None:
        """Returns at once. Call it often; it signals every ``every_s`` while ``healthy``."""
        due = self._sent_s is None or now_s - self._sent_s >= self._every_s
        busy = self._sending is not None and self._sending.is_alive()
        if not healthy or not due or busy:
            return
        self._sent_s = now_s
        self._sending = threading.Thread(target=self._send, name="dead man's signal", daemon=True)
        self._sending.start()

    def stop(self) -> None:
        if self._sending is not None:
            self._sending.join(self._timeout_s)

    def _send(self) -> None:
        try:
            request("POST", self._url, b"", {}, self._timeout_s)
            self._failing = False
        except DeliveryFailed as error:
            if not self._failing:  # said once, not every minute
                log.warning("the signal of life does not get through: %s", error)
            self._failing = True
