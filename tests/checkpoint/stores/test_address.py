"""Addresses: what is taken, what is refused, and that no secret gets into one."""

import sys
from pathlib import Path

import pytest

from keepstep.checkpoint.stores.address import OPTIONS, VARIABLES, Location, open_store, parse_location
from keepstep.checkpoint.stores.posix import PosixStore


def test_paths_and_file_urls(tmp_path: Path) -> None:
    for address in (tmp_path, str(tmp_path), f"file://{tmp_path}", f"file://localhost{tmp_path}"):
        store = open_store(address)
        assert isinstance(store, PosixStore)
        assert store.path == tmp_path
    assert open_store("file:///a%20b").name == "/a b"
    assert open_store("relative/place").name == "relative/place"


def test_buckets() -> None:
    plain = parse_location("s3://bucket", {})
    assert plain == Location(scheme="s3", bucket="bucket")
    assert plain.name() == "s3://bucket"
    full = parse_location("s3://bucket/a/b/?region=eu-1&endpoint=https://s3.example:9000/x", {})
    assert full == Location(
        scheme="s3", bucket="bucket", prefix="a/b", region="eu-1", endpoint="https://s3.example:9000/x"
    )
    assert parse_location(full.name(), {}) == full
    azure = parse_location("az://box/p?account=me", {})
    assert azure == Location(scheme="az", bucket="box", prefix="p", account="me")
    assert parse_location("gs://bucket/p", {}).name() == "gs://bucket/p"


def test_the_environment_fills_in_and_the_name_says_so() -> None:
    environment = {"AWS_ENDPOINT_URL": "http://one", "AWS_ENDPOINT_URL_S3": "http://two"}
    assert parse_location("s3://b/p", environment).name() == "s3://b/p?endpoint=http://two"
    assert parse_location("s3://b/p?endpoint=http://three", environment).endpoint == "http://three"
    assert parse_location("az://b", {"AZURE_STORAGE_ACCOUNT_NAME": "me"}).account == "me"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("", "is empty"),
        ("file://host/x", "three slashes"),
        ("file:///x?y", "three slashes"),
        ("ftp://host/x", "not a kind of store: there are a path, file://, s3://"),
        ("s3a://bucket/x", "write s3://"),
        ("abfss://bucket/x", "write az://"),
        ("s3://", "is the bucket"),
        ("s3:///prefix", "is the bucket"),
        ("s3://host:9000/bucket", "without a port"),
        ("s3://bucket/a//b", "is not a key"),
        ("s3://bucket/../x", "is not a key"),
        ("s3://bucket/x#y", "is the bucket"),
        ("s3://bucket?speed=1", "has no option speed: there are endpoint, region"),
        ("gs://bucket?region=1", "has no option region"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?endpoint=host:9000", "http:// or https://"),
        ("az://container/x", r"append \?account="),
    ],
)
def test_what_cannot_be_right_is_refused(address: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=why):
        open_store(address)


@pytest.mark.parametrize(
    "address",
    [
        "s3://AKIA:hunter2@bucket/x",
        "s3://bucket/x?secret_access_key=hunter2",
        "s3://bucket/x?access_key_id=hunter2",
        "s3://bucket/x?endpoint=http://me:hunter2@host",
        "az://container/x?sas_token=hunter2",
        "az://container/x?account_key=hunter2",
        "gs://bucket/x?credentials=hunter2",
    ],
)
def test_a_secret_in_an_address_is_refused_and_not_repeated(address: str) -> None:
    with pytest.raises(ValueError, match=r"credentials do not belong there. Set .* in the environment") as caught:
        open_store(address)
    assert "hunter2" not in str(caught.value)


def test_without_the_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "keepstep.checkpoint.stores.objects", raising=False)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ImportError, match=r"pip install 'keepstep\[objects\]'"):
        open_store("s3://bucket/x")


def test_the_reference_names_every_option_and_variable() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "checkpoint-stores.md").read_text()
    rows = {
        (cells[0], cells[1]): cells for line in page.splitlines() if len(cells := line.strip("| ").split(" | ")) == 4
    }
    documented = {(scheme.strip("`"), option.strip("`")): cells[3] for (option, scheme), cells in rows.items()}
    for scheme, options in OPTIONS.items():
        for option in options:
            for variable in VARIABLES.get((scheme, option), ()):
                assert f"`{variable}`" in documented[scheme, option]
            assert (scheme, option) in documented
