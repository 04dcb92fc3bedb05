"""The first meeting of a node with its server: a token for a certificate. Owns that one exchange; keeps nothing."""

import socket

from cryptography import x509
from msgspec import Struct

from keepstep.adapters.pki.pinning import WrongServer, is_pinned, pinned_context, split_join_token
from keepstep.adapters.pki.request import new_key_and_request
from keepstep.wire.messages import MAX_FRAME_BYTES, Enrol, Enrolled, NotLeader, Refused, decode, encode


class JoinRefused(ConnectionError):
    """The server says no. Says why."""


class FollowsOnly(ConnectionError):
    """This server does not lead; ``leader`` does, where that is known."""

    def __init__(self, leader: str) -> None:
        self.leader = leader
        super().__init__(f"this server follows; join at the leader: {leader or 'unknown now, try again'}")


class Joined(Struct, frozen=True, kw_only=True):
    """All as PEM."""

    key: bytes
    certificate: bytes
    authority: bytes


def join(host: str, port: int, token: str, name: str, hosts: tuple[str, ...] = (), timeout_s: float = 15.0) -> Joined:
    """``hosts``: of a replica, under which it is reached. Blocks. Raises ValueError where the token is none, WrongServer,
    JoinRefused, FollowsOnly, OSError."""
    secret, pin = split_join_token(token)
    context = pinned_context(host, port, pin, timeout_s)
    key, request = new_key_and_request(name, hosts)
    with (
        socket.create_connection((host, port), timeout=timeout_s) as link,
        context.wrap_socket(link, server_hostname=host) as shaken,
        shaken.makefile("rb") as answers,
    ):
        shaken.sendall(encode(Enrol(request=request, token=secret, name=name)))
        size = int.from_bytes(answers.read(4), "big")
        if not 0 < size <= MAX_FRAME_BYTES:
            raise WrongServer(f"{host}:{port} hangs up instead of answering")
        answer = decode(answers.read(size))
    if isinstance(answer, NotLeader):
        raise FollowsOnly(answer.leader)
    if not isinstance(answer, Enrolled):
        raise JoinRefused(answer.reason if isinstance(answer, Refused) else f"unexpected answer {answer!r}")
    if not all(is_pinned(x509.load_pem_x509_certificate(pem), pin) for pem in (answer.certificate, answer.authority)):
        raise WrongServer("the certificate that came is of another authority than the token names")
    return Joined(key=key, certificate=answer.certificate, authority=answer.authority)
