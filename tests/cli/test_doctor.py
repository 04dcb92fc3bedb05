"""The doctor finds what was broken on purpose, says how to mend it, and is content with what is sound."""

import json
import os
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
from keepstep.wire import messages as m

add_late(["doctor"])


@pytest.fixture
def state(tmp_path) -> StateDir:
    made = StateDir(tmp_path / "state")
    made.create()
    return made


@pytest.fixture
def examined(keepstep):
    """(exit code, findings that are not good as {check: text and mend})."""

    def run(state: StateDir) -> tuple[int, dict[str, str], dict[str, str]]:
        done = keepstep("doctor", "--state-dir", state.path, "--json")
        told = json.loads(done.stdout)
        by = {"good": {}, "note": {}, "bad": {}}
        for one in told["findings"]:
            by[one["verdict"]][one["check"]] = f"{one['text']} → {one['mend']}"
        assert told["healthy"] == (done.returncode == 0) == (not by["bad"])
        return done.returncode, by["bad"], by["good"]

    return run


def test_a_sound_installation_is_sound(served, examined):
    code, bad, good = examined(served)
    assert (code, bad) == (0, {})
    assert {"state directory", "secrets", "journal", "server", "leader", "clock", "disk space", "flush time"} <= set(
        good
    )


def test_it_speaks_to_people_too(served, keepstep):
    done = keepstep("doctor", "--state-dir", served.path)
    assert done.returncode == 0
    assert "✓ server: answers at unix:" in done.stdout
    assert done.stdout.rstrip().endswith("nothing is wrong")


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
        answering.join(10.0)
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
