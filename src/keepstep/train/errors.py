"""What the SDK raises. Owns the classes only; each message says what to do."""


class SessionError(ValueError):
    """The script uses the session in a way that cannot work: a mistake to correct in the script."""


class RestoreFailed(RuntimeError):
    """The state to restore is invalid or does not fit the script. The rank ends: it may be half applied."""


class DataStateInvalid(ValueError):
    """A saved data position does not belong to this data set. Nothing was applied."""
