"""Stores of every kind, each test with a place of its own in them."""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import pytest

from keepstep.checkpoint.stores.address import Limits, open_store
from keepstep.checkpoint.stores.port import Store

from .servers import Server, azurite, rclone, seaweedfs

__all__ = ["azurite", "rclone", "seaweedfs"]

LIMITS = Limits(connect_s=120.0, request_s=120.0, patience_s=120.0, retries=2)
"""SeaweedFS may take ten seconds to decide a race of sixteen, as the self-test makes it."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whoever comes first starts a server, and the others wait for it."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set around the tests must not decide where they go."""
    for name in list(os.environ):
        if name.upper().startswith(("AWS_", "AZURE_", "GOOGLE_")) or name.upper().endswith("_PROXY"):
            monkeypatch.delenv(name)


@pytest.fixture
def open_on(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Store]:
    """Open a store on a server, with the server's credentials in the environment."""

    def open_on(server: Server, prefix: str = "", *, bucket: str = "ckpt", limits: Limits = LIMITS) -> Store:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        return open_store(server.address(prefix, bucket), limits)

    return open_on


@pytest.fixture(params=["posix", "seaweedfs", "azurite"])
def address(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in a store of each kind that is fit for commits; its credentials are in the environment."""
    if request.param == "posix":
        return str(tmp_path / "store")
    server: Server = request.getfixturevalue(request.param)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server.address(f"test-{secrets.token_hex(6)}")


@pytest.fixture
def store(address: str) -> Store:
    return open_store(address, LIMITS)
