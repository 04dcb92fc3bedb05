"""``alerts.toml``: what it may say, and what is said of a wrong one; and the command that checks and tries it."""

import re
import tomllib
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from keepstep.cli.alerts import alerts
from keepstep.server.alert_file import AlertFile, read_alert_file
from keepstep.telemetry import Alert

GOOD = """
min_level = "info"
repeat_s = 3600

[webhook.chat]
url = "https://chat.example.net/hook?token=1"
secret_file = "hook.secret"
min_level = "warning"

[email.oncall]
host = "mail.example.net"
sender = "keepstep@example.net"
to = ["oncall@example.net"]

[heartbeat]
url = "https://watch.example.net/ping/1"
every_s = 30
"""


@pytest.fixture
def keepstep(tmp_path):
    def call(*arguments):
        return CliRunner().invoke(alerts, [*arguments, "--state-dir", str(tmp_path)])

    return call


def test_a_file_is_read(tmp_path):
    path = tmp_path / "alerts.toml"
    path.write_text(GOOD)
    file = read_alert_file(path)
    assert file.webhook["chat"].secret_file == "hook.secret"
    assert (file.email["oncall"].port, file.email["oncall"].security) == (587, "starttls")
    assert file.heartbeat is not None and file.heartbeat.every_s == 30
    assert file.rules.min_level == "warning", "nobody wants to hear of less"
    assert file.rules.repeat_s == 3600


def test_without_a_file_nobody_is_told(tmp_path):
    assert read_alert_file(tmp_path / "none.toml") == AlertFile()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("min_level = 'loud'", "min_level"),
        ("colour = 'red'", "colour"),
        ("[webhook.x]", "url"),
        ("[webhook.x]\nurl = 'ftp://h/x'", "no http:// or https://"),
        ("[webhook.x]\nurl = 'http://'", "no http:// or https://"),
        ("[webhook.x]\nurl = 'http://h/grün'", "plain ASCII"),
        ("[webhook.x]\nurl = 'http://me:pw@h/x'", "would not be sent"),
        ("[webhook.x]\nurl = 'http://h'\ntimeout_s = 0", "must be above 0"),
        ("[email.x]\nhost = 'h'\nsender = 'a@b'\nto = []", "somebody must stand"),
        ("[email.x]\nhost = 'h'\nsender = 'a@b'\nto = ['c']", "need an @"),
        ("[email.x]\nhost = 'h'\nsender = 'a@b'\nto = ['c@d']\nuser = 'u'", "belong together"),
        (
            "[email.x]\nhost='h'\nsender='a@b'\nto=['c@d']\nuser='u'\npassword_file='p'\nsecurity='none'",
            "not sent in the clear",
        ),
        ("[email.x]\nhost = 'h'\nsender = 'a@b'\nto = ['c@d']\nport = 0", "port 0"),
        ("[heartbeat]\nurl = 'http://h'\nevery_s = -1", "must be above 0"),
        ("repeat_s = -1", "cannot be negative"),
        ("[webhook.x", "]"),
    ],
)
def test_a_wrong_file_is_told_what_is_wrong(tmp_path, text, says):
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=str(path)) as told:
        read_alert_file(path)
    assert says in str(told.value)


def test_check_says_who_would_be_told_of_what(tmp_path, keepstep):
    (tmp_path / "alerts.toml").write_text(GOOD)
    (tmp_path / "hook.secret").write_text("s3cret\n")
    done = keepstep("check")
    assert done.exit_code == 0, done.output
    assert "webhook chat: warning and above to https://chat.example.net/hook?token=1, signed" in done.output
    assert "email oncall: page and above to oncall@example.net through mail.example.net:587 (starttls)" in done.output
    assert "every 30 s" in done.output


@pytest.mark.parametrize(("whole", "own", "told"), [("page", "info", "page"), ("info", "warning", "warning")])
def test_check_tells_the_level_that_holds(tmp_path, keepstep, whole, own, told):
    """A channel asks for less than the file, never for more."""
    (tmp_path / "alerts.toml").write_text(
        f"min_level = '{whole}'\n[webhook.x]\nurl = 'http://h'\nmin_level = '{own}'\n"
    )
    assert f"webhook x: {told} and above" in keepstep("check").output


def test_check_names_a_secret_that_is_not_there(tmp_path, keepstep):
    (tmp_path / "alerts.toml").write_text(GOOD)
    done = keepstep("check")
    assert done.exit_code == 1
    assert "hook.secret" in done.output and "webhook chat" in done.output


def test_check_names_a_template_that_cannot_be_filled(tmp_path, keepstep):
    (tmp_path / "alerts.toml").write_text("[webhook.x]\nurl = 'http://h'\ntemplate = 't.json'\n")
    (tmp_path / "t.json").write_text('{"text": "${titel}"}')
    done = keepstep("check")
    assert done.exit_code == 1
    assert "titel" in done.output and "t.json" in done.output


def test_without_a_file_the_command_says_so(keepstep):
    done = keepstep("check")
    assert done.exit_code == 1
    assert "nobody is told" in done.output


def test_a_trial_notice_goes_out_now(tmp_path, keepstep, receiver):
    (tmp_path / "alerts.toml").write_text(
        f"[webhook.a]\nurl = '{receiver.url}/a'\n[webhook.b]\nurl = '{receiver.url}/b'\ntimeout_s = 60\n"
    )
    done = keepstep("test", "b")
    assert done.exit_code == 0, done.output
    request = receiver.take()
    assert request.path == "/b"
    assert msgspec.json.decode(request.body, type=Alert).kind == "test"
    assert receiver.requests.empty()


def test_a_trial_notice_that_is_refused_says_why(tmp_path, keepstep, receiver):
    (tmp_path / "alerts.toml").write_text(f"[webhook.a]\nurl = '{receiver.url}'\ntimeout_s = 60\n")
    receiver.answers.put(403)
    done = keepstep("test")
    assert done.exit_code == 1
    assert "answered 403" in done.output
    assert keepstep("test", "nobody").exit_code == 1


def test_the_file_of_the_how_to_is_a_good_one(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "monitor-and-alert.md").read_text()
    shown = re.findall(r"(?s)```toml\n(.*?)```", page)
    assert shown
    for text in shown:
        assert tomllib.loads(text)
        (tmp_path / "alerts.toml").write_text(text)
        read_alert_file(tmp_path / "alerts.toml")
