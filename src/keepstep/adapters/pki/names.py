"""What a certificate of ours says of its holder: role and name, as one URI. Owns that spelling, and that of serial numbers."""

import ipaddress
from collections.abc import Iterable
from urllib.parse import quote, unquote

from cryptography import x509
from msgspec import Struct

SCHEME = "keepstep"


class Subject(Struct, frozen=True, kw_only=True):
    """Who a certificate is for."""

    role: str
    """See core.access; ``server`` for a server of the authority's own installation."""
    name: str
    hosts: tuple[str, ...] = ()
    """Names and addresses under which a server is reached."""


def uri_of(role: str, name: str) -> str:
    return f"{SCHEME}:{quote(role, safe='')}/{quote(name, safe='')}"


def subject_of(certificate: x509.Certificate) -> Subject:
    """Raises ValueError where it is none of ours."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ValueError("the certificate names nobody") from None
    for uri in names.get_values_for_type(x509.UniformResourceIdentifier):
        scheme, _, rest = uri.partition(":")
        role, slash, name = rest.partition("/")
        if scheme == SCHEME and slash:
            hosts = [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]
            return Subject(role=unquote(role), name=unquote(name), hosts=tuple(hosts))
    raise ValueError("the certificate has no keepstep: name; it is of another authority")


def host_names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    """As alternative names: addresses as addresses, the rest as names."""
    return [_host_name(host) for host in dict.fromkeys(hosts)]


def _host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def serial_text(serial: int) -> str:
    """As the journal, the commands and the certificates' own registry spell it: 32 hexadecimal digits."""
    return f"{serial:032x}"
