"""What can go wrong between a program and the API, as exceptions. Each says what the server said."""

from collections.abc import Sequence

from keepstep.server.http_views import FieldError


class ApiError(Exception):
    """The server answered with an error."""

    def __init__(self, status: int, detail: str, errors: Sequence[FieldError] = ()) -> None:
        self.status, self.detail, self.errors = status, detail, tuple(errors)
        which = "; ".join(f"{error.field}: {error.message}" for error in self.errors)
        super().__init__(f"{detail} ({which})" if which else detail)


class InvalidRequest(ApiError):
    """Wrong input (400, 413, 415, 422, 428)."""


class Unauthenticated(ApiError):
    """No token, or one that nobody is known by (401)."""


class PermissionDenied(ApiError):
    """The role or the tenant does not allow it (403)."""


class NotFound(ApiError):
    """There is no such thing, or it is another tenant's (404)."""


class WrongState(ApiError):
    """Its subject is not in a state for it (409), or was changed since it was read (412)."""


class Unavailable(ApiError):
    """Nobody leads, or the journal cannot be written (503), and that stayed so over all tries."""


class Unreachable(ConnectionError):
    """No server answers at the address, or it broke off, over all tries."""


BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidRequest,
    401: Unauthenticated,
    403: PermissionDenied,
    404: NotFound,
    409: WrongState,
    412: WrongState,
    413: InvalidRequest,
    415: InvalidRequest,
    422: InvalidRequest,
    428: InvalidRequest,
    503: Unavailable,
}
