"""Those who wrap session keys: what they answer, the three ways in which they refuse, and that none of them hangs or tells."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.errors import KeyMissing, KeyStale, KeyUnusable, WrongKey
from keepstep.checkpoint.keys.port import Secret, Session, Wrapped
from keepstep.checkpoint.keys.providers import CommandProvider, FileProvider

from .keyrings import everything_shown, forms_of, put_key

KEY = bytes(range(32))
COMMAND = Path(__file__).parent / "programs" / "wrap_key.py"
SESSION = Session(
    tenant="acme", job="gpt", generation=3, number=0, seal_until_unix_s=0, open_until_unix_s=0, check="c" * 32
)
OTHER = Session(
    tenant="acme", job="bert", generation=3, number=0, seal_until_unix_s=0, open_until_unix_s=0, check="c" * 32
)


DEADLINES_S = (1.0, 10.0, 60.0)
"""Of commands that hang: the next where one had not even begun within the one before."""


def command(tmp_path: Path, how: str, deadline_s: float = 120.0) -> CommandProvider:
    secret = tmp_path / "secret"
    if not secret.exists():
        secret.write_bytes(os.urandom(32))
    return CommandProvider([sys.executable, str(COMMAND), str(secret), how], deadline_s=deadline_s)


def make(kind: str, tmp_path: Path) -> Any:
    if kind == "command":
        return command(tmp_path, "serve")
    put_key(tmp_path / "keys", "1.key")
    return FileProvider(tmp_path / "keys")


@pytest.mark.parametrize("kind", ["file", "command"])
def test_a_wrapped_key_is_unwrapped(kind: str, tmp_path: Path) -> None:
    provider = make(kind, tmp_path)
    wrapped = provider.wrap(Secret(KEY), SESSION)
    assert wrapped.provider == provider.kind == kind
    assert KEY not in wrapped.data
    assert provider.unwrap(wrapped, SESSION).reveal() == KEY


def test_a_newer_key_wraps_and_the_older_one_still_unwraps(tmp_path: Path) -> None:
    put_key(tmp_path / "keys", "1.key")
    provider = FileProvider(tmp_path / "keys")
    old = provider.wrap(Secret(KEY), SESSION)
    put_key(tmp_path / "keys", "10.key")
    new = provider.wrap(Secret(KEY), SESSION)
    assert [wrapped.key.split("#")[0] for wrapped in (old, new)] == ["1", "10"]
    assert provider.unwrap(old, SESSION).reveal() == provider.unwrap(new, SESSION).reveal() == KEY


def test_the_next_key_opens_and_does_not_wrap_yet(tmp_path: Path) -> None:
    put_key(tmp_path / "here", "1.key")
    two = put_key(tmp_path / "here", "2.next")
    put_key(tmp_path / "there", "2.key", two)
    assert FileProvider(tmp_path / "here").wrap(Secret(KEY), SESSION).key.startswith("1#")
    from_there = FileProvider(tmp_path / "there").wrap(Secret(KEY), SESSION)
    assert FileProvider(tmp_path / "here").unwrap(from_there, SESSION).reveal() == KEY


def test_a_withdrawn_key_is_stale(tmp_path: Path) -> None:
    provider = make("file", tmp_path)
    wrapped = provider.wrap(Secret(KEY), SESSION)
    (tmp_path / "keys" / "1.withdrawn").touch()
    with pytest.raises(KeyStale, match=r"key 1, .* was withdrawn.*put 1.key back"):
        provider.unwrap(wrapped, SESSION)
    with pytest.raises(KeyStale, match=r"Put 32 random bytes into 2\.key"):
        provider.wrap(Secret(KEY), SESSION)


def test_an_absent_key_is_missing(tmp_path: Path) -> None:
    provider = make("file", tmp_path)
    wrapped = provider.wrap(Secret(KEY), SESSION)
    (tmp_path / "keys" / "1.key").unlink()
    with pytest.raises(KeyMissing, match=r"Copy 1\.key there"):
        provider.unwrap(wrapped, SESSION)
    with pytest.raises(KeyMissing, match="holds no key file"):
        provider.wrap(Secret(KEY), SESSION)
    with pytest.raises(KeyMissing, match="cannot list"):
        FileProvider(tmp_path / "absent").unwrap(wrapped, SESSION)


def test_another_key_of_that_number_is_wrong(tmp_path: Path) -> None:
    provider = make("file", tmp_path)
    wrapped = provider.wrap(Secret(KEY), SESSION)
    put_key(tmp_path / "keys", "1.key")
    with pytest.raises(WrongKey, match="another key of that number"):
        provider.unwrap(wrapped, SESSION)


def test_what_was_wrapped_for_another_session_is_wrong(tmp_path: Path) -> None:
    provider = make("file", tmp_path)
    wrapped = provider.wrap(Secret(KEY), SESSION)
    with pytest.raises(WrongKey, match="was not wrapped for it, or was altered"):
        provider.unwrap(wrapped, OTHER)
    flipped = bytes([wrapped.data[0] ^ 1]) + wrapped.data[1:]
    for data in (flipped, b"", wrapped.data + b"x"):
        with pytest.raises(WrongKey, match="was altered"):
            provider.unwrap(Wrapped(provider="file", key=wrapped.key, data=data), SESSION)


@pytest.mark.parametrize("name", ["", "1", "../1#" + "0" * 16, "01#" + "0" * 16, "x" * 10_000])
def test_a_key_name_from_an_altered_record_reaches_no_file(name: str, tmp_path: Path) -> None:
    with pytest.raises(WrongKey, match="not the name of a key file"):
        make("file", tmp_path).unwrap(Wrapped(provider="file", key=name, data=b"x"), SESSION)


@pytest.mark.parametrize("data", [b"", bytes(32), b"x" * 31, b"x" * 33, b"0123456789abcdef" * 4])
def test_a_file_that_holds_no_key_is_refused(data: bytes, tmp_path: Path) -> None:
    put_key(tmp_path / "keys", "1.key", data)
    with pytest.raises(WrongKey, match="32 random bytes, not text and not zeros"):
        FileProvider(tmp_path / "keys").wrap(Secret(KEY), SESSION)


@pytest.mark.parametrize("mode", [0o604, 0o602, 0o620, 0o666, 0o644])
def test_a_key_that_others_can_read_or_change_is_refused(mode: int, tmp_path: Path) -> None:
    put_key(tmp_path / "keys", "1.key", mode=mode)
    with pytest.raises(WrongKey, match="chmod 600"):
        FileProvider(tmp_path / "keys").wrap(Secret(KEY), SESSION)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    put_key(tmp_path / "keys", "1.key")
    os.chown(tmp_path / "keys" / "1.key", 12345, 12345)
    with pytest.raises(WrongKey, match="belongs to user 12345"):
        FileProvider(tmp_path / "keys").wrap(Secret(KEY), SESSION)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files that root owns")
def test_a_group_may_read_what_root_owns(tmp_path: Path) -> None:
    put_key(tmp_path / "keys", "1.key", mode=0o440)
    FileProvider(tmp_path / "keys").wrap(Secret(KEY), SESSION)


def test_a_pipe_in_place_of_a_key_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    os.mkfifo(tmp_path / "keys" / "1.key", 0o600)
    with pytest.raises(WrongKey, match="not a regular file"):
        FileProvider(tmp_path / "keys").wrap(Secret(KEY), SESSION)


def test_a_mounted_secret_may_be_a_link(tmp_path: Path) -> None:
    put_key(tmp_path / "data", "k")
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "1.key").symlink_to(tmp_path / "data" / "k")
    provider = FileProvider(tmp_path / "keys")
    assert provider.unwrap(provider.wrap(Secret(KEY), SESSION), SESSION).reveal() == KEY


def test_a_command_is_told_the_context_and_another_one_gives_another_key(tmp_path: Path) -> None:
    provider = command(tmp_path, "serve")
    wrapped = provider.wrap(Secret(KEY), SESSION)
    assert provider.unwrap(wrapped, OTHER).reveal() != KEY


@pytest.mark.parametrize(
    ("how", "kind"), [("missing", KeyMissing), ("stale", KeyStale), ("wrong", WrongKey), ("other", KeyMissing)]
)
def test_a_command_can_say_which_of_the_three_it_is(how: str, kind: type[KeyUnusable], tmp_path: Path) -> None:
    with pytest.raises(kind, match=f"says of session key {SESSION.id}: the service said {how}"):
        command(tmp_path, how).wrap(Secret(KEY), SESSION)


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path, eventually: Callable[..., Any]) -> None:
    script = "sleep 600 & echo $! > $0; echo waiting for the service >&2; wait"
    said = ""
    for deadline_s in DEADLINES_S:
        provider = CommandProvider(["sh", "-c", script, str(tmp_path / "child")], deadline_s=deadline_s)
        with pytest.raises(KeyMissing, match="did not answer in time") as raised:
            provider.wrap(Secret(KEY), SESSION)
        said = str(raised.value)
        if "It said" in said:
            break
    assert "It said: waiting for the service" in said
    child = int((tmp_path / "child").read_text())
    eventually(lambda: not _runs(child), "the command's child to end")


def test_a_command_that_closes_its_streams_and_stays_is_killed() -> None:
    said = ""
    for deadline_s in DEADLINES_S:
        provider = CommandProvider(["sh", "-c", "exec <&- >&- 2>&-; sleep 600"], deadline_s=deadline_s)
        with pytest.raises(KeyMissing, match="it was killed") as raised:
            provider.wrap(Secret(KEY), SESSION)
        said = str(raised.value)
        if "does not end" in said:
            break
    assert "does not end; it was killed" in said


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("deaf", r"failed \(exit status 4\).*It said: no ears"),
        ("flood", "said more than 65536 bytes"),
        ("babble", "did not answer with the JSON document"),
        ("serve", "without a usable 'wrapped'"),
    ],
)
def test_a_command_that_fails_is_an_error_in_words(how: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(KeyMissing, match=words):
        if how == "serve":
            CommandProvider([sys.executable, "-c", "print('{}')"], deadline_s=120.0).wrap(Secret(KEY), SESSION)
        command(tmp_path, how).wrap(Secret(KEY), SESSION)


def test_a_command_that_does_not_exist_is_an_error_in_words() -> None:
    with pytest.raises(KeyMissing, match="cannot start the command /absent/wrap"):
        CommandProvider(["/absent/wrap"]).wrap(Secret(KEY), SESSION)


def test_a_command_that_does_not_encrypt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongKey, match="unencrypted"):
        command(tmp_path, "plain").wrap(Secret(KEY), SESSION)


def test_a_short_answer_is_no_session_key(tmp_path: Path) -> None:
    wrapped = command(tmp_path, "serve").wrap(Secret(KEY), SESSION)
    with pytest.raises(WrongKey, match="31 bytes, not 32"):
        command(tmp_path, "short").unwrap(wrapped, SESSION)


def test_no_shell_sees_a_command(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="list of arguments"):
        CommandProvider("wrap-key; touch here")
    with pytest.raises(KeyMissing):
        CommandProvider(["sh", "-c", "exit 1", f"; touch {tmp_path}/here"]).wrap(Secret(KEY), SESSION)
    assert not (tmp_path / "here").exists()


@pytest.mark.parametrize("how", ["leak", "short", "babble", "hang", "flood", "plain"])
def test_no_error_of_a_command_shows_a_key(how: str, tmp_path: Path) -> None:
    provider = command(tmp_path, how, deadline_s=1.0 if how == "hang" else 120.0)
    with pytest.raises(KeyUnusable) as raised:
        if how == "short":
            wrapped = command(tmp_path, "serve").wrap(Secret(KEY), SESSION)
            provider.unwrap(wrapped, SESSION)
        provider.wrap(Secret(KEY), SESSION)
    shown = everything_shown(raised.value)
    assert not any(form in shown for form in forms_of(KEY))
    assert not any(form in shown for form in forms_of(KEY[:31])[1:2])
    assert how != "leak" or "debug: [removed] [removed]" in str(raised.value)
    assert "\x1b" not in str(raised.value)


def test_no_error_of_the_key_files_shows_a_key(tmp_path: Path) -> None:
    one = put_key(tmp_path / "keys", "1.key")
    provider = FileProvider(tmp_path / "keys")
    wrapped = provider.wrap(Secret(KEY), SESSION)
    with pytest.raises(WrongKey) as altered:
        provider.unwrap(wrapped, OTHER)
    two = put_key(tmp_path / "keys", "1.key")
    with pytest.raises(WrongKey) as replaced:
        provider.unwrap(wrapped, SESSION)
    shown = everything_shown(altered.value) + everything_shown(replaced.value) + repr(provider)
    assert not any(form in shown for key in (KEY, one, two) for form in forms_of(key))
