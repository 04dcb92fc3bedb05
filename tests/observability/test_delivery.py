"""From a notice to people: signed webhooks, mail, retries, a full queue, the signal of life. Real servers on the loopback."""

import datetime
import email
import hashlib
import hmac
import ipaddress
import json
import queue
import socket
import ssl
import threading
import time

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from keepstep.adapters.email.channel import EmailChannel, MailServer
from keepstep.adapters.webhook.channel import WebhookChannel
from keepstep.server.dead_man import DeadMan
from keepstep.server.delivery import QUEUE_MAX, Delivery, Patience
from keepstep.telemetry import Alert, DeliveryFailed

ALERT = Alert(
    id="waiting:i1@1000", key="waiting:i1", kind="waiting", status="firing", level="page", title="j: i1 \"waits\"",
    text="näher\nansehen", at_s=1.0, subject="i1", job="j", since_s=1.0,
)  # fmt: skip
QUICK = Patience(first_s=0.01, most_s=0.02, tries=4)
WAIT_S = 60.0
"""For an answer: whoever gives it runs on the same machine, which may stand still."""


def webhook(url, secret=b"", template=""):
    return WebhookChannel("webhook w", url, secret, template, timeout_s=WAIT_S)


def to_two(server):
    return EmailChannel("email e", server, "keepstep@example.net", ("a@example.net", "b@example.net"), timeout_s=WAIT_S)


class Mailbox:
    """A mail server of one page: SMTP with STARTTLS where it has a certificate. Keeps what it is given."""

    def __init__(self, context=None, refuse=b""):
        self.mails = queue.Queue()
        self.commands = []
        self._context = context
        self._refuse = refuse
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                try:
                    self._session(connection)
                except (OSError, ssl.SSLError):
                    continue

    def _session(self, connection):
        file = connection.makefile("rb")
        connection.sendall(b"220 box\r\n")
        while line := file.readline():
            word = line.split()[0].upper() if line.split() else b""
            self.commands.append(word)
            if word == b"EHLO":
                connection.sendall(b"250-box\r\n250 STARTTLS\r\n" if self._context else b"250 box\r\n")
            elif word == b"STARTTLS" and self._context:
                connection.sendall(b"220 go\r\n")
                connection = self._context.wrap_socket(connection, server_side=True)
                file = connection.makefile("rb")
            elif word == b"RCPT" and self._refuse:
                connection.sendall(self._refuse)
            elif word == b"DATA":
                connection.sendall(b"354 go\r\n")
                lines = []
                while (text := file.readline()) not in (b".\r\n", b""):
                    lines.append(text)
                self.mails.put((b"".join(lines), isinstance(connection, ssl.SSLSocket)))
                connection.sendall(b"250 kept\r\n")
            elif word == b"QUIT":
                connection.sendall(b"221 bye\r\n")
                break
            else:
                connection.sendall(b"250 fine\r\n")
        file.close()
        connection.close()

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(WAIT_S)


@pytest.fixture(scope="session")
def certificate(tmp_path_factory):
    """(certificate file, server's context) for 127.0.0.1."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "mail")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder = tmp_path_factory.mktemp("mail")
    (folder / "c.pem").write_bytes(built.public_bytes(serialization.Encoding.PEM))
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "k.pem").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "c.pem", folder / "k.pem")
    return folder / "c.pem", context


@pytest.fixture
def mailbox():
    """Makes mailboxes; closes them at the end."""
    made = []

    def make(**options):
        made.append(Mailbox(**options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def delivery():
    """Starts deliveries; what became of each notice is in the list. Stops them at the end."""
    made, became = [], []

    def start(channel, level="info", patience=QUICK):
        made.append(Delivery(channel, level, lambda name, result: became.append((name, result)), patience))
        return made[-1], became

    yield start
    for one in made:
        one.stop(WAIT_S)


def test_a_webhook_is_signed_over_its_time_and_body(receiver):
    webhook(f"{receiver.url}/hook?a=1", b"s3cret").send(ALERT)
    request = receiver.take()
    assert request.path == "/hook?a=1"
    assert msgspec.json.decode(request.body, type=Alert) == ALERT
    assert request.headers["Keepstep-Alert-Id"] == ALERT.id
    at, _, digest = request.headers["Keepstep-Signature"].partition(",v1=")
    at = at.removeprefix("t=")
    assert abs(int(at) - time.time()) < 600
    assert digest == hmac.new(b"s3cret", at.encode() + b"." + request.body, hashlib.sha256).hexdigest()


def test_without_a_secret_nothing_pretends_to_be_signed(receiver):
    webhook(receiver.url).send(ALERT)
    assert "Keepstep-Signature" not in receiver.take().headers


def test_a_template_makes_the_body_that_a_receiver_wants(receiver):
    template = '{"text": "[${level}] ${title}: ${text}", "id": "${id}"}'
    webhook(receiver.url, template=template).send(ALERT)
    body = json.loads(receiver.take().body)
    assert body == {"text": f"[page] {ALERT.title}: {ALERT.text}", "id": ALERT.id}


def test_a_template_with_a_field_that_there_is_not_is_refused_at_once():
    with pytest.raises(ValueError, match="titel"):
        webhook("http://127.0.0.1:1", template="${titel}")
    with pytest.raises(ValueError, match="titel"):
        EmailChannel("email e", MailServer(host="h"), "a@b", ("c@d",), "${titel}")


@pytest.mark.parametrize(("status", "again"), [(500, True), (503, True), (429, True), (404, False), (302, False)])
def test_an_answer_says_whether_to_try_again(receiver, status, again):
    receiver.answers.put(status)
    with pytest.raises(DeliveryFailed) as told:
        webhook(receiver.url).send(ALERT)
    assert told.value.again == again and str(status) in str(told.value)


def test_a_receiver_that_is_not_there_is_tried_again():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        with pytest.raises(DeliveryFailed) as told:
            webhook(f"http://127.0.0.1:{taken.getsockname()[1]}").send(ALERT)
    assert told.value.again


def test_a_notice_gets_through_after_two_failures(receiver, delivery, eventually):
    for status in (503, 500):
        receiver.answers.put(status)
    queued, became = delivery(webhook(receiver.url))
    queued.put(ALERT)
    assert [receiver.take().headers["Keepstep-Alert-Id"] for _ in range(3)] == [ALERT.id] * 3
    eventually(lambda: became == [("webhook w", "sent")], "the notice counts as sent")


def test_what_is_refused_for_good_is_given_up_and_the_next_one_goes_out(receiver, delivery, eventually):
    receiver.answers.put(400)
    queued, became = delivery(webhook(receiver.url))
    queued.put(ALERT)
    queued.put(msgspec.structs.replace(ALERT, id="second"))
    eventually(lambda: became == [("webhook w", "failed"), ("webhook w", "sent")], "one failed, one sent")
    assert [receiver.take().headers["Keepstep-Alert-Id"] for _ in range(2)] == [ALERT.id, "second"]


def test_a_channel_hears_only_what_is_urgent_enough(receiver, delivery, eventually):
    queued, became = delivery(webhook(receiver.url), level="page")
    queued.put(msgspec.structs.replace(ALERT, id="quiet", level="warning"))
    queued.put(ALERT)
    eventually(lambda: len(became) == 1, "one was sent")
    assert receiver.take().headers["Keepstep-Alert-Id"] == ALERT.id


def test_a_channel_with_a_bug_still_takes_the_next_notice(delivery, eventually):
    class Wrong:
        name = "webhook wrong"
        calls = 0

        def send(self, alert):
            self.calls += 1
            if self.calls == 1:
                raise KeyError("a bug")

    queued, became = delivery(Wrong())
    queued.put(ALERT)
    queued.put(ALERT)
    eventually(lambda: became == [("webhook wrong", "failed"), ("webhook wrong", "sent")], "the second is sent")


def test_a_full_queue_drops_and_says_so(delivery):
    class Stuck:
        name = "webhook stuck"
        release = threading.Event()
        sent = 0

        def send(self, alert):
            self.release.wait(WAIT_S)
            self.sent += 1

    channel = Stuck()
    queued, became = delivery(channel)
    for _ in range(QUEUE_MAX + 10):
        queued.put(ALERT)
    assert became.count(("webhook stuck", "dropped")) >= 9
    assert channel.sent == 0, "putting does not wait for the channel"
    channel.release.set()


@pytest.mark.parametrize("security", ["none", "starttls"])
def test_a_mail_arrives_and_can_be_read(mailbox, certificate, security):
    ca_file, context = certificate
    box = mailbox(context=context if security == "starttls" else None)
    server = MailServer(host="127.0.0.1", port=box.port, security=security, ca_file=str(ca_file))
    to_two(server).send(ALERT)
    raw, sealed = box.mails.get(timeout=WAIT_S)
    assert sealed == (security == "starttls")
    mail = email.message_from_bytes(raw, policy=email.policy.default)
    assert mail["Subject"] == '[keepstep page] j: i1 "waits"'
    assert mail["To"] == "a@example.net, b@example.net"
    text = mail.get_content()
    assert "näher\nansehen" in text.replace("\r\n", "\n") and ALERT.id in text
    assert box.commands.count(b"RCPT") == 2


def test_the_same_notice_has_the_same_message_id():
    channel = EmailChannel("email e", MailServer(host="h"), "a@b", ("c@d",))
    resolved = msgspec.structs.replace(ALERT, id="other", status="resolved", title="two\nlines")
    assert channel.message(ALERT)["Message-ID"] == channel.message(ALERT)["Message-ID"]
    assert channel.message(ALERT)["Message-ID"] != channel.message(resolved)["Message-ID"]
    assert channel.message(resolved)["Subject"] == "[keepstep resolved] two lines"


def test_a_mail_server_that_nobody_vouches_for_gets_nothing(mailbox, certificate):
    box = mailbox(context=certificate[1])
    with pytest.raises(DeliveryFailed, match="certificate"):
        to_two(MailServer(host="127.0.0.1", port=box.port)).send(ALERT)
    assert box.mails.empty()


@pytest.mark.parametrize(("answer", "again"), [(b"550 nobody here\r\n", False), (b"451 later\r\n", True)])
def test_a_refusal_of_a_mail_server_says_whether_to_try_again(mailbox, answer, again):
    box = mailbox(refuse=answer)
    server = MailServer(host="127.0.0.1", port=box.port, security="none")
    with pytest.raises(DeliveryFailed) as told:
        to_two(server).send(ALERT)
    assert told.value.again == again


def test_the_signal_of_life_comes_while_all_is_well_and_stops_when_it_is_not(receiver, eventually):
    dead_man = DeadMan(receiver.url, every_s=10.0, timeout_s=WAIT_S)
    dead_man.tick(0.0, healthy=True)
    receiver.take()
    dead_man.tick(5.0, healthy=True)
    dead_man.tick(11.0, healthy=False)
    dead_man.stop()
    assert receiver.requests.empty(), "too early, and then not well"
    dead_man.tick(12.0, healthy=True)
    receiver.take()
    dead_man.stop()
