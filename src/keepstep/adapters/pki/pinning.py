"""Join tokens: a secret, and the key of the authority that its holder will meet. Owns their spelling and the first trust.

Whoever joins knows no certificate yet. The token says which key must have signed the server's, so that the secret is told to
nobody else.
"""

import base64
import binascii
import socket
import ssl

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class WrongServer(ConnectionError):
    """Another authority's server, or no server of ours at all, answers there."""


def pin_of(certificate: x509.Certificate) -> str:
    """The authority's public key, as short as it goes: a point of P-256, compressed."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError("the authority has no ECDSA key")
    point = key.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.CompressedPoint)
    return base64.urlsafe_b64encode(point).decode().rstrip("=")


def join_token(secret: str, pin: str) -> str:
    return f"{secret}.{pin}"


def split_join_token(text: str) -> tuple[str, ec.EllipticCurvePublicKey]:
    """(secret, key of the authority). Raises ValueError."""
    secret, _, pin = text.strip().rpartition(".")
    try:
        point = base64.urlsafe_b64decode(pin + "=" * (-len(pin) % 4))
        return secret, ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    except (ValueError, binascii.Error):
        raise ValueError("this is no join token; make one on the server with `keepstep token create --join`") from None


def is_pinned(certificate: x509.Certificate, key: ec.EllipticCurvePublicKey) -> bool:
    """The certificate is the authority's own, or signed by it."""
    try:
        key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def pinned_context(host: str, port: int, key: ec.EllipticCurvePublicKey, timeout_s: float) -> ssl.SSLContext:
    """For a connection to exactly the server that showed a certificate of that authority for that host.

    Asks for the certificate on a connection of its own, over which nothing is said. Raises WrongServer, OSError.
    """
    try:
        shown = _shown_by(host, port, timeout_s)
    except ssl.SSLError as error:
        raise WrongServer(f"{host}:{port} does not speak TLS 1.3: {error.reason or error}") from None
    if not is_pinned(x509.load_der_x509_certificate(shown), key):
        raise WrongServer(
            f"the server at {host}:{port} shows a certificate of another authority than the token names; nothing was told "
            "to it. Check the address, or make a new token on that server"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(cadata=ssl.DER_cert_to_PEM_cert(shown))
    return context


def _shown_by(host: str, port: int, timeout_s: float) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((host, port), timeout=timeout_s) as link,
        context.wrap_socket(link, server_hostname=host) as shaken,
    ):
        shown = shaken.getpeercert(binary_form=True)
    if shown is None:
        raise WrongServer(f"the server at {host}:{port} shows no certificate")
    return shown
