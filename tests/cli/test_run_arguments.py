"""Wrong input to ``keepstep run`` is refused before anything starts, in words that help."""

import pytest


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nope.py"], "there is no script nope.py"),
        (["."], "not a file"),
        (["--nproc-per-node", "0", "train.py"], "at least one rank"),
        (["--nodes", "two", "train.py"], "neither a number nor MIN:MAX"),
        (["--nodes", "3:2", "train.py"], "MIN not above MAX"),
        (["--nodes", "0", "train.py"], "at least 1 node"),
        (["--nodes", "1:2:3", "train.py"], "neither a number nor MIN:MAX"),
        (["--spares", "-1", "train.py"], "not below 0"),
        (["--server", "tcp:h:1", "train.py"], "go together"),
        (["--node", "n0", "train.py"], "go together"),
        (["--server", "h", "--node", "n0", "train.py"], "is not an address"),
        (["--job", "a/b", "train.py"], "letters, digits"),
    ],
)
def test_refused(keepstep, tmp_path, arguments, words):
    (tmp_path / "train.py").write_text("")
    done = keepstep("run", "--state-dir", tmp_path / "state", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "state" / "journal.db").exists()


def test_no_script(keepstep, tmp_path):
    done = keepstep("run", "--state-dir", tmp_path / "state")
    assert done.returncode == 2


def test_version_and_help(keepstep):
    assert keepstep("--version").stdout.startswith("keepstep ")
    listed = keepstep("--help").stdout
    for command in ("run", "server", "jobs", "incidents", "incident", "report", "journal", "stop", "hold", "approve"):
        assert command in listed
