"""Notices as plain-text mail over SMTP. Owns the message and the session; retries and queues are the caller's."""

import smtplib
import ssl
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import formatdate
from typing import Literal

import msgspec
from msgspec import Struct

from keepstep.telemetry import Alert, DeliveryFailed, notice_template

DEFAULT_TEMPLATE = """\
${text}

what    ${title}
status  ${status}
level   ${level}
since   ${since}
subject ${subject}
job     ${job}

This is notice ${id} of a Keepstep server. The same one may come twice.
"""


class MailServer(Struct, frozen=True, kw_only=True):
    host: str
    port: int = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password: str = ""
    ca_file: str = ""


class EmailChannel:
    """Meets telemetry.Channel."""

    def __init__(
        self, name: str, server: MailServer, sender: str, to: tuple[str, ...], template: str = "", timeout_s: float = 20.0
    ) -> None:  # fmt: skip
        self.name = name
        self._server = server
        self._sender = sender
        self._to = to
        self._template = notice_template(template or DEFAULT_TEMPLATE, ("since", "at"))
        self._timeout_s = timeout_s

    def send(self, alert: Alert) -> None:
        message = self.message(alert)
        try:
            with self._session() as session:
                refused = session.send_message(message)
        except smtplib.SMTPResponseException as error:
            words = (
                error.smtp_error.decode(errors="replace") if isinstance(error.smtp_error, bytes) else error.smtp_error
            )
            raise DeliveryFailed(
                f"{self._server.host}: {error.smtp_code} {words}", again=error.smtp_code < 500
            ) from error
        except smtplib.SMTPRecipientsRefused as error:
            told = ", ".join(f"{who}: {code}" for who, (code, _) in error.recipients.items())
            again = any(code < 500 for code, _ in error.recipients.values())
            raise DeliveryFailed(f"{self._server.host} takes no mail for {told}", again=again) from error
        except (OSError, smtplib.SMTPException) as error:
            raise DeliveryFailed(f"{self._server.host}: {error}") from error
        if refused:
            raise DeliveryFailed(f"{self._server.host} refused {', '.join(refused)}", again=False)

    def message(self, alert: Alert) -> EmailMessage:
        """``Message-ID`` is the notice's, so that a mailbox shows the second copy of it as what it is."""
        fields = msgspec.to_builtins(alert) | {"since": formatdate(alert.since_s), "at": formatdate(alert.at_s)}
        told = "resolved" if alert.status == "resolved" else alert.level
        message = EmailMessage()
        message["Subject"] = " ".join(f"[keepstep {told}] {alert.title}".split())
        message["From"] = Address(addr_spec=self._sender)
        message["To"] = ", ".join(self._to)
        message["Date"] = formatdate(alert.at_s)
        message["Message-ID"] = f"<{alert.id.encode().hex()[:120]}@keepstep>"
        message["Auto-Submitted"] = "auto-generated"
        message.set_content(self._template.substitute(fields))
        return message

    def _session(self) -> smtplib.SMTP:
        server = self._server
        context = ssl.create_default_context(cafile=server.ca_file or None)
        if server.security == "tls":
            session: smtplib.SMTP = smtplib.SMTP_SSL(server.host, server.port, timeout=self._timeout_s, context=context)
        else:
            session = smtplib.SMTP(server.host, server.port, timeout=self._timeout_s)
        try:
            if server.security == "starttls":
                session.starttls(context=context)
            if server.user:
                session.login(server.user, server.password)
        except BaseException:
            session.close()
            raise
        return session
