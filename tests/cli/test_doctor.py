"""The doctor finds what was broken on purpose, says how to mend it, and is content with what is sound."""

import json
import os
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from keepstep.adapters.pki.authority import Authority
from keepstep.adapters.pki.names import Subject
from keepstep.adapters.pki.request import new_key_and_request, store_identity
from keepstep.cli import check_machine, check_server
from keepstep.cli.app import add_late
from keepstep.server.state_dir import ServerLock, StateDir
from keepstep.server.status_queries import Status
from keepstep.wire import messages as m

add_late(["doctor"])


@pytest.fixture
def state(tmp_path) -> StateDir:
    made = StateDir(tmp_path / "state")
    made.create()
    return made


OF_THE_MACHINE = {"disk space", "flush time"}
"""Where the tests run, the disk may be full or slow: that is no finding about Keepstep."""


@pytest.fixture
def examined(keepstep):
    """(exit code, what is bad, what is good, as {check: text and mend}); what is the machine's own counts as good."""

    def run(state: StateDir) -> tuple[int, dict[str, str], dict[str, str]]:
        done = keepstep("doctor", "--state-dir", state.path, "--json")
        told = json.loads(done.stdout)
        by = {"good": {}, "note": {}, "bad": {}}
        for one in told["findings"]:
            by[one["verdict"]][one["check"]] = f"{one['text']} → {one['mend']}"
        assert told["healthy"] == (done.returncode == 0) == (not by["bad"])
        machine = {check: text for told in by.values() for check, text in told.items() if check in OF_THE_MACHINE}
        bad = {check: text for check, text in by["bad"].items() if check not in machine}
        return int(bool(bad)), bad, by["good"] | machine

    return run


def test_a_sound_installation_is_sound(served, examined):
    code, bad, good = examined(served)
    assert (code, bad) == (0, {})
    assert {"state directory", "secrets", "journal", "server", "leader", "clock"} | OF_THE_MACHINE <= good.keys()


def test_a_server_that_leads_says_so(served, examined):
    _, _, good = examined(served)
    assert re.match(r"server \d+-\w+ leads under term \d+, journal entry \d+: the one that answers", good["leader"])


@pytest.mark.parametrize(
    ("told", "verdict", "text"),
    [
        ({"server": "1-ab", "leader": "2-cd", "leader_address": "tls:h2:1"}, "good",
         "server 2-cd at tls:h2:1 leads under term 2, journal entry 9; server 1-ab, which answers, follows"),
        ({"server": "1-ab"}, "bad", "nobody leads: server 1-ab follows, and shows how things were at journal entry 9"),
        ({}, "good", "somebody leads under term 2, journal entry 9; a server of that version does not say who"),
    ],
)  # fmt: skip
def test_a_server_that_follows_says_who_leads(told, verdict, text):
    seen = Status(version="0", now_s=1.0, entry=9, term=2, live_jobs=0, open_incidents=0, nodes=0, **told)
    found = check_server._leader(seen)
    assert (found.check, found.verdict, found.text) == ("leader", verdict, text)


def test_it_speaks_to_people_too(served, keepstep):
    done = keepstep("doctor", "--state-dir", served.path)
    lines = done.stdout.splitlines()
    assert any(line.startswith("✓ server: answers at unix:") for line in lines)
    wrong = [line for line in lines if line.startswith("✗")]
    assert all(line[2:].partition(":")[0] in OF_THE_MACHINE for line in wrong)
    assert done.returncode == bool(wrong) and (wrong or lines[-1] == "nothing is wrong")


def test_without_anything_nothing_is_wrong_and_nothing_is_made(tmp_path, examined):
    code, bad, _ = examined(StateDir(tmp_path / "none"))
    assert (code, bad) == (0, {})
    assert not (tmp_path / "none").exists()


def test_secrets_that_others_can_read(state, examined):
    state.token()
    state.token_file.chmod(0o644)
    state.path.chmod(0o755)
    code, bad, _ = examined(state)
    assert code == 1
    assert f"chmod 600 {state.token_file}" in bad["secrets"]
    assert f"chmod 700 {state.path}" in bad["state directory"]


def test_a_damaged_journal(state, examined):
    state.journal.write_bytes(b"\xff" * 8192)
    code, bad, _ = examined(state)
    assert code == 1
    assert "put a copy of the journal back" in bad["journal"]


def test_a_server_that_holds_the_directory_and_does_not_answer(state, examined):
    state.token()
    lock = ServerLock(state)
    state.publish(state.address_file, f"unix:{state.path / 'gone.sock'}")
    try:
        code, bad, _ = examined(state)
    finally:
        lock.release()
    assert code == 1
    assert f"pid {os.getpid()}" in bad["server"]


def test_a_server_that_was_ended_is_only_worth_a_note(state, examined):
    state.token()
    ServerLock(state).release()
    state.publish(state.address_file, f"unix:{state.path / 'gone.sock'}")
    assert examined(state)[0] == 0


def test_a_server_of_another_protocol(state, examined):
    """A listener that answers as a server of another version does."""
    path = state.path / "s"
    state.token()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(4)
        state.publish(state.address_file, f"unix:{path}")
        answering = threading.Thread(target=_refuse_one, args=(listening,))
        answering.start()
        code, bad, _ = examined(state)
        answering.join(60.0)
    assert code == 1
    assert "protocol" in bad["server"]


def _refuse_one(listening: socket.socket) -> None:
    link, _ = listening.accept()
    with link:
        link.recv(65536)
        link.sendall(m.encode(m.Refused(reason="the client speaks protocol 2, this server speaks 1")))


@pytest.mark.parametrize(
    ("begins_s", "life_s", "verdict", "words"),
    [
        (0.0, 3600.0, "good", "until"),
        (-3000.0, 3600.0, "note", "nobody has renewed"),
        (-7200.0, 3600.0, "bad", "expired"),
        (3600.0, 3600.0, "bad", "clock"),
    ],
)
def test_certificates_that_end(state, begins_s, life_s, verdict, words):
    authority = Authority.open(state.path / "ca")
    key, request = new_key_and_request("n1")
    signed = authority.sign(request, Subject(role="agent", name="n1"), time.time() + begins_s, life_s)
    store_identity(state.path / "identity", key, signed.certificate, authority.certificate_pem)
    found = [one for one in check_machine.certificates(state) if one.text.startswith("identity")]
    assert [(one.verdict, words in one.text + one.mend) for one in found] == [(verdict, True)]


def test_a_network_file_system_is_told_apart():
    assert check_machine._file_system_of(Path("/proc/self")) == "proc"
    assert check_machine._file_system_of(Path("/")) != ""
    assert "proc" not in check_machine.NETWORK_FILE_SYSTEMS


def test_an_http_address_that_nobody_serves(state):
    state.publish(state.http_file, "http://127.0.0.1:1")
    (found,) = check_server.http_api(state)
    assert found.verdict == "note"
    lock = ServerLock(state)
    try:
        (found,) = check_server.http_api(state)
    finally:
        lock.release()
    assert found.verdict == "bad"


def test_what_is_wrong_with_the_alerts_is_said_before_the_server_starts_anew(state, examined):
    file = state.path / "alerts.toml"
    file.write_text('min_level = "foo"\n')
    _, bad, _ = examined(state)
    assert "min_level" in bad["alerts"] and "keepstep alerts check" in bad["alerts"]
    file.write_text('[webhook.pager]\nurl = "http://127.0.0.1:9/x"\nsecret_file = "gone"\n')
    _, bad, _ = examined(state)
    assert "gone" in bad["alerts"]
    (state.path / "gone").write_text("secret")
    code, bad, good = examined(state)
    assert (code, bad) == (0, {}) and "1 channel in" in good["alerts"]


def test_that_nobody_would_be_told_is_worth_a_note(state):
    assert list(check_machine.alerts(state)) == [], "nothing has run here yet"
    state.address_file.write_text("tcp:127.0.0.1:1")  # a server of a shared database: no journal lies here
    (found,) = check_machine.alerts(state)
    assert found.verdict == "note" and "monitor-and-alert" in found.mend
    (state.path / "alerts.toml").write_text('[heartbeat]\nurl = "http://127.0.0.1:9/x"\n')
    (found,) = check_machine.alerts(state)
    assert found.verdict == "note" and "no webhook" in found.text
