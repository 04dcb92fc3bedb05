"""``keepstep report`` of an incident, a week and a job: formats, files, copies of a journal, and errors that help."""

import shutil
import xml.etree.ElementTree as ElementTree

import msgspec
import pytest

from keepstep.cli.moments import moment_s
from keepstep.review.figures import Review
from keepstep.review.postmortem import Postmortem

SUBCOMMANDS = {"incident": ["incident", "inc-0002"], "week": ["week"], "job": ["job", "gpt"]}


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_each_report_in_each_format(recorded, keepstep, name):
    kind = Postmortem if name == "incident" else Review
    done = keepstep("report", *SUBCOMMANDS[name], "--state-dir", recorded, "--format", "json")
    assert done.returncode == 0, done.stderr
    msgspec.json.decode(done.stdout, type=kind)
    text = keepstep("report", *SUBCOMMANDS[name], "--state-dir", recorded)
    assert text.stdout.startswith("# ") and "## In short" in text.stdout and "](" not in text.stdout
    page = keepstep("report", *SUBCOMMANDS[name], "--state-dir", recorded, "--format", "html")
    assert page.stdout.startswith("<!doctype html>") and "<svg" in page.stdout and "<script" not in page.stdout


def test_a_copy_of_the_journal_is_enough(recorded, keepstep, tmp_path):
    here = keepstep("report", "incident", "inc-0002", "--state-dir", recorded, "--format", "json")
    copy = tmp_path / "laptop"
    copy.mkdir()
    shutil.copy(recorded / "journal.db", copy / "night.db")
    (recorded / "journal.db").rename(recorded / "gone.db")
    there = keepstep("report", "incident", "inc-0002", "--journal", copy / "night.db", "--format", "json")
    assert there.returncode == 0, there.stderr
    assert there.stdout == here.stdout
    assert [path.name for path in copy.iterdir() if path.suffix == ".db"] == ["night.db"]


def test_the_name_of_the_file_says_the_format(recorded, keepstep, tmp_path):
    for name, begins in (("a.html", "<!doctype"), ("a.json", "{"), ("a.md", "# ")):
        done = keepstep("report", "incident", "inc-0002", "--state-dir", recorded, "--output", tmp_path / name)
        assert done.returncode == 0 and done.stdout == "" and name in done.stderr
        assert (tmp_path / name).read_text().startswith(begins)
    plots = sorted(tmp_path.glob("a-*.svg"))
    assert plots and all(f"(<{plot.name}>)" in (tmp_path / "a.md").read_text() for plot in plots)
    for plot in plots:
        ElementTree.parse(plot)


def test_the_numbers_of_one_incident(recorded, keepstep):
    done = keepstep("report", "incident", "inc-0002", "--state-dir", recorded, "--format", "json")
    told = msgspec.json.decode(done.stdout, type=Postmortem)
    assert (told.cost.lost_steps, told.cost.restored_step, told.cost.restored_from) == (2, 6, "ram")
    assert told.cost.gpu_h * 3600 == pytest.approx(4 * (told.cost.downtime_s + told.cost.redone_s))
    assert [x.entry for x in told.evidence_for] and [x.what for x in told.moments][-1] == "caught up"
    way = [x.after_s for x in told.moments if x.how == "measured" and x.what != "first step"]
    assert way == sorted(way)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["incident", "inc-9"], "there is no incident 'inc-9'"),
        (["job", "nobody"], "there is no job 'nobody'"),
        (["week", "--since", "yesterday"], "write 2026-11-30"),
        (["week", "--since", "2040-01-01"], "of no time at all"),
        (["week", "--journal", "nowhere.db"], "there is no journal file nowhere.db"),
        (["week", "--output", "no/such/folder.md"], "cannot be written"),
    ],
)
def test_errors_say_what_is_wrong(recorded, keepstep, arguments, says):
    where = [] if "--journal" in arguments else ["--state-dir", recorded]
    done = keepstep("report", *arguments, *where)
    assert done.returncode != 0
    assert says in " ".join(done.stderr.split())


def test_moments():
    assert moment_s("1970-01-02") == 86_400.0
    assert moment_s("1970-01-01T01:00") == 3600.0
    assert moment_s("1970-01-01T01:00+01:00") == 0.0
    assert moment_s("36h", 200_000.0) == 200_000.0 - 129_600.0
    with pytest.raises(ValueError, match="no point in time"):
        moment_s("36x")
