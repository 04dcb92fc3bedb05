"""Tokens and the policy from the command line, against a real server: secrets are shown once, and what is refused says why."""

import json
from collections.abc import Callable

import pytest

from keepstep.adapters.database.opening import open_journal
from keepstep.adapters.pki.authority import Authority
from keepstep.adapters.pki.pinning import is_pinned, split_join_token
from keepstep.adapters.server_link.errors import ServerRefused
from keepstep.adapters.server_link.tool import ToolClient
from keepstep.cli.app import add_late
from keepstep.core import facts as f
from keepstep.server.registry import digest_of
from keepstep.server.state_dir import StateDir
from keepstep.server.views import Jobs
from keepstep.wire.requests import SetPolicy

add_late(["ca", "join", "policy", "token"])


@pytest.fixture
def call(served, keepstep) -> Callable[..., str]:
    def run(*words: object, code: int = 0) -> str:
        done = keepstep(*words, "--state-dir", served.path)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def records(state: StateDir) -> list[object]:
    journal = open_journal(state.journal, read_only=True)
    try:
        return [entry.record for entry in journal.read()]
    finally:
        journal.close()


def tool(state: StateDir, secret: str) -> ToolClient:
    address = state.address()
    assert address is not None
    return ToolClient(address, secret)


def test_a_token_is_shown_once_and_the_journal_has_its_digest_only(served, call):
    made = json.loads(call("token", "create", "--role", "viewer", "--name", "vera", "--tenant", "red", "--json"))
    with tool(served, made["token"]) as vera:
        vera.query("jobs", Jobs)
        with pytest.raises(ServerRefused, match="viewer"):
            vera.act(SetPolicy(overrides=""))
    (issued,) = [r for r in records(served) if isinstance(r, f.TokenIssued) and r.name == "vera"]
    assert issued.digest == digest_of(made["token"])
    assert (issued.role, issued.tenants, issued.id) == ("viewer", ("red",), made["id"])
    assert made["token"].encode() not in served.journal.read_bytes()
    listed = call("token", "list")
    assert "vera" in listed and made["token"] not in listed
    assert made["token"] not in call("token", "list", "--json")


def test_a_revoked_token_opens_nothing(served, call):
    made = json.loads(call("token", "create", "--role", "operator", "--name", "omar", "--json"))
    tool(served, made["token"]).close()
    call("token", "revoke", made["id"])
    with pytest.raises(ServerRefused, match="wrong token"):
        tool(served, made["token"])
    assert "no token" in call("token", "revoke", made["id"], code=1)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--role", "king", "--name", "k"], "no role"),
        (["--role", "viewer"], "needs the name"),
        (["--role", "viewer", "--name", "v", "--expires", "soon"], "no duration"),
        (["--role", "viewer", "--name", "v", "--expires", "-1d"], "no duration"),
        (["--role", "viewer", "--name", "v", "--join"], "no role that joins"),
        (["--role", "agent", "--join", "--expires", "never"], "must expire"),
    ],
)
def test_what_makes_no_sense_is_refused_before_a_secret_is_made(call, keepstep, served, words, why):
    done = keepstep("token", "create", *words, "--state-dir", served.path)
    assert done.returncode in (1, 2)
    assert why in done.stderr
    assert "kst_" not in done.stdout


@pytest.mark.parametrize(
    ("text", "after_s"), [("90s", 90.0), ("30m", 1800.0), ("12h", 43200.0), ("2d", 172800.0), ("0.5h", 1800.0)]
)
def test_expiry_is_counted_by_the_server(served, call, text, after_s):
    id = json.loads(call("token", "create", "--role", "viewer", "--name", "e", "--expires", text, "--json"))["id"]
    journal = open_journal(served.journal, read_only=True)
    (entry,) = [e for e in journal.read() if isinstance(e.record, f.TokenIssued) and e.record.id == id]
    journal.close()
    assert entry.record.expires_s == pytest.approx(entry.at_s + after_s, abs=30)


def test_a_join_token_names_the_authority_that_its_holder_will_meet(served, call):
    assert "tls:" in call("token", "create", "--join", "--role", "agent", code=1)
    authority = Authority.open(served.path / "ca")
    secret, pin = split_join_token(call("token", "create", "--join", "--role", "agent", "--name", "n1").strip())
    assert is_pinned(authority.certificate, pin)
    (issued,) = [r for r in records(served) if isinstance(r, f.TokenIssued) and r.kind == "join"]
    assert issued.digest == digest_of(secret)
    assert authority.fingerprint in call("ca", "show")
    assert "no certificate" in call("ca", "list")
    assert "no certificate" in call("ca", "revoke", "n1", code=1)


@pytest.mark.parametrize("server", ["127.0.0.1:1", "tls:127.0.0.1:1", "unix:/tmp/x", "nonsense"])
def test_joining_says_what_is_wrong(call, keepstep, tmp_path, served, server):
    Authority.open(served.path / "ca")
    token = call("token", "create", "--join", "--role", "agent", "--name", "n1").strip()
    done = keepstep("join", server, token, "--state-dir", tmp_path / "node")
    assert done.returncode == 1
    assert done.stderr.startswith("keepstep: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "node" / "identity").exists()


def test_what_is_no_join_token_is_not_sent_anywhere(keepstep, tmp_path):
    done = keepstep("join", "tls:127.0.0.1:1", "kst_abc", "--state-dir", tmp_path / "node")
    assert (done.returncode, "no join token" in done.stderr) == (1, True)


# ---- the policy


def test_a_policy_is_checked_set_and_shown(served, call, tmp_path):
    file = tmp_path / "policy.toml"
    file.write_text("[hang]\nfirst_s = 120.0\n[budget.per_cause]\ndevice = 2\n")
    checked = call_plain(call, "policy", "check", file)
    assert checked.splitlines() == [
        "[hang] first_s = 120.0  # built in: 900.0",
        "[budget.per_cause] device = 2  # built in: 6",
    ]
    assert "built in: nobody" in call("policy", "show").splitlines()[0]
    call("policy", "set", file)
    shown = call("policy", "show")
    assert "first_s = 120.0  # built in: 900.0" in shown
    assert any(isinstance(r, f.PolicySet) and r.overrides == file.read_text() for r in records(served))
    again = tmp_path / "again.toml"
    again.write_text(shown)
    assert call_plain(call, "policy", "check", again).splitlines() == checked.splitlines()
    file.write_text("")
    call("policy", "set", file)
    assert "# built in:" not in "\n".join(call("policy", "show").splitlines()[1:])


def call_plain(call, *words: object) -> str:
    """``policy check`` asks no server, and takes no state directory."""
    from typer.testing import CliRunner

    from keepstep.cli.app import app

    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[hang", "TOML"),
        ("[hung]\n", "hung"),
        ("[hang]\nfirst_s = 'soon'", "first_s"),
        ("[hang]\nfirst_s = -1.0", "negative"),
    ],
)
def test_a_wrong_policy_names_the_key_and_sets_nothing(served, call, tmp_path, text, why):
    file = tmp_path / "policy.toml"
    file.write_text(text)
    before = len(records(served))
    assert why in call("policy", "set", file, code=1)
    assert len(records(served)) == before


def test_what_a_person_asks_for_is_told_to_programs_too(call, tmp_path):
    """``--json`` of a command that changes something: the entry under which it is in the journal."""
    empty = tmp_path / "empty.toml"
    empty.touch()
    assert json.loads(call("policy", "set", empty, "--json"))["entry"] > 0
    made = json.loads(call("token", "create", "--role", "viewer", "--name", "ada", "--json"))
    taken = json.loads(call("token", "revoke", made["id"], "--json"))
    assert taken["entry"] > 0 and taken["subject"] == made["id"]
    other = json.loads(call("token", "create", "--role", "viewer", "--name", "ada", "--json"))
    assert f"{other['id']} is revoked; journal entry" in call("token", "revoke", other["id"])


@pytest.mark.parametrize("command", ["stop nope", "hold node/nope", "unhold node/nope", "approve nope", "deny nope"])
def test_every_command_that_asks_for_something_takes_json(call, command):
    assert "nope" in call(*command.split(), "--json", code=1)
