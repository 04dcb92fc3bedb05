"""Secrets as files: whole or not at all, readable by their owner only. Owns how they are written, not what they are."""

import contextlib
import os
import secrets
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec


def write_once(path: Path, content: bytes) -> None:
    """Where somebody else was first, theirs stays."""
    draft = _draft(path, content)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass
    finally:
        draft.unlink()
    _flush(path.parent)


def write_over(path: Path, content: bytes) -> None:
    """In one step: no reader sees half of it."""
    _draft(path, content).replace(path)
    _flush(path.parent)


def _draft(path: Path, content: bytes) -> Path:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return draft


def _flush(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(fd)
    finally:
        os.close(fd)


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Raises OSError, and ValueError where it is no key of ours."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path} is no private key: {error}") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{path} is no ECDSA key")
    return key
