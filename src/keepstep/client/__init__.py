"""A client of the HTTP API for programs: ``Client`` and ``AsyncClient``, typed with the answers of the server. Needs httpx."""

from keepstep.client.asynchronous import AsyncClient
from keepstep.client.errors import (
    ApiError,
    InvalidRequest,
    NotFound,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
    Unreachable,
    WrongState,
)
from keepstep.client.synchronous import Client
from keepstep.client.talking import Event

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "Event",
    "InvalidRequest",
    "NotFound",
    "PermissionDenied",
    "Unauthenticated",
    "Unavailable",
    "Unreachable",
    "WrongState",
]
