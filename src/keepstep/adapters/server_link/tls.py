"""TLS on the wire: both ends' contexts, and what a failed handshake means in words. Owns versions and checks; makes no keys.

TLS 1.3 only. A client takes a server whose certificate was signed by the one authority it knows and names the host that was
dialled. A server asks for a certificate and also takes clients without one: they may enrol, or show a token.
"""

import os
import ssl
import time

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "certificate.pem", "key.pem"
_EXPIRED, _NOT_YET, _WRONG_HOST = 10, 9, (62, 64)
"""X509_V_ERR_…; every other one that is met here means: not signed by our authority."""


class IdentityProblem(ConnectionError):
    """What is wrong with our certificate, our authority, or the server's; says what to do."""


def has_certificate(identity_dir: str) -> bool:
    return os.path.exists(os.path.join(identity_dir, CERTIFICATE))


def client_context(identity_dir: str) -> ssl.SSLContext:
    """From ``authority.pem``, and ``certificate.pem`` with ``key.pem`` where there is one. Raises IdentityProblem."""
    # The directory is a link that is changed in one step: what is read here fits together.
    while True:
        folder = os.path.realpath(identity_dir)
        try:
            context = _client_context(folder, identity_dir)
        except IdentityProblem:
            if os.path.realpath(identity_dir) == folder:
                raise
        else:
            if os.path.realpath(identity_dir) == folder:
                return context
        # It was replaced while we read, and some of what was there before may have been gone by then.


def _client_context(folder: str, identity_dir: str) -> ssl.SSLContext:
    authority = _authority_for(folder, identity_dir)
    if not authority:
        raise IdentityProblem(f"there is no identity in {identity_dir}: get one with `keepstep join SERVER TOKEN`")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(authority)
        if has_certificate(folder):
            context.load_cert_chain(os.path.join(folder, CERTIFICATE), os.path.join(folder, KEY))
    except OSError as error:
        raise IdentityProblem(
            f"the identity in {identity_dir} cannot be used ({_reason(error)}); get a new one with `keepstep join`"
        ) from error
    return context


def _authority_for(folder: str, identity_dir: str) -> str:
    """Of the identity. Where a server lives there is none: its own authority lies beside. Empty where there is neither."""
    beside = os.path.join(os.path.dirname(os.path.abspath(identity_dir)), "ca")
    return next((path for place in (folder, beside) if os.path.exists(path := os.path.join(place, AUTHORITY))), "")


def server_context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """Of three files. Whenever they change, the next connection sees the new ones. Raises OSError where they do not fit."""
    files = (certificate, key, authority)
    current = [_stamp(files)], [_server_context(*files)]

    def newest(link: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _context: ssl.SSLContext) -> None:
        """Asked at the beginning of each handshake. Files that do not fit (yet) leave the old ones in use."""
        stamps, contexts = current
        try:
            if (now := _stamp(files)) != stamps[0]:
                contexts[0] = _server_context(*files)
                stamps[0] = now
        except OSError:
            pass
        link.context = contexts[0]

    context = _server_context(*files)
    context.sni_callback = newest
    return context


def peer_serial(certificate: dict[str, object] | None) -> str | None:
    """Serial of a peer's verified certificate, as ``SSLObject.getpeercert`` gives it: as adapters.pki spells it."""
    serial = (certificate or {}).get("serialNumber")
    return f"{int(str(serial), 16):032x}" if serial else None


def explain(error: BaseException, identity_dir: str) -> str:
    """A failed handshake in words for the person who can mend it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return "the server's certificate has expired; restart the server, or renew it with `keepstep ca renew`"
        if error.verify_code == _NOT_YET:
            return "the server's certificate is not valid yet: the clocks of the two machines differ"
        if error.verify_code in _WRONG_HOST:
            return f"{error.verify_message}; dial a name that it was made for"
        return (
            f"the server's certificate was not signed by the authority in {identity_dir} ({error.verify_message}); "
            "if the server is the right one, `keepstep join` it"
        )
    if "WRONG_VERSION_NUMBER" in str(error).upper().replace(" ", "_"):
        return "the server does not speak TLS at this address"
    return f"TLS failed: {_reason(error)}"


def hung_up(identity_dir: str) -> str:
    """Why a server may have ended the conversation after the handshake and before a word: in TLS 1.3 it looks at our
    certificate only then, and where it runs on asyncio its alert does not arrive."""
    from keepstep.adapters.pki.request import NoIdentity, read_identity

    if not has_certificate(identity_dir):
        return "the server hung up before it said a word"
    try:
        left_s = read_identity(identity_dir).not_after_s - time.time()
    except NoIdentity as problem:
        return str(problem)
    if left_s < 0:
        return f"the certificate in {identity_dir} has expired; get a new one with `keepstep join`"
    return (
        f"the server hung up before it said a word: it goes down, or the certificate in {identity_dir} is of another "
        "authority than its own; then `keepstep join` it"
    )


def _server_context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    # A resumed session would carry an old certificate into a new connection.
    context.num_tickets = 0
    return context


def _stamp(files: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    found = [os.stat(file) for file in files]
    return tuple((one.st_mtime_ns, one.st_ino) for one in found)


def _reason(error: BaseException) -> str:
    return getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error) or type(error).__name__
