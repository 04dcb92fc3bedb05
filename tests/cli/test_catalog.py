"""``keepstep catalog``: rows and rules as a person asks for them, and files of a site's own rows that are right or wrong."""

import json

import pytest

from keepstep.cli.app import add_late

add_late(["catalog"])


@pytest.mark.parametrize("key", ["79", "xid.79"])
def test_explain_tells_both_verdicts_and_who_says_so(keepstep, key):
    done = keepstep("catalog", "explain", key)
    assert done.returncode == 0
    for part in (
        "xid.79 (catalogue ",
        "gpu.fallen_off_bus",
        "scope card",
        "faulty: quarantine",
        "now: restart_elsewhere",
    ):
        assert part in done.stdout
    assert "source" in done.stdout
    assert "rule gpu_lost (act)" in done.stdout


def test_a_number_that_is_no_xid_is_looked_up_as_an_sxid(keepstep):
    assert keepstep("catalog", "explain", "20034").stdout.startswith("sxid.20034 ")


def test_explain_as_json_is_the_row(keepstep):
    row = json.loads(keepstep("catalog", "explain", "79", "--json").stdout)
    assert (row["signal"], row["verdict"], row["urgency"], row["scope"]) == ("xid.79", "faulty", "now", "card")


def test_a_signal_that_is_not_known_leads_to_those_that_sound_alike(keepstep):
    done = keepstep("catalog", "explain", "fallen")
    assert done.returncode == 1
    assert "did you mean" in done.stderr and "xid.79" in done.stderr


def test_a_code_that_nobody_lists_is_explained_by_its_family(keepstep):
    done = keepstep("catalog", "explain", "xid.999")
    assert done.returncode == 0
    assert done.stdout.startswith("xid.999 (catalogue ") and "the row of its family" in done.stdout


def test_no_word_of_the_list_is_cut_in_a_narrow_terminal(keepstep):
    shown = keepstep("catalog", "list", "xid.9", columns=90).stdout
    assert "verdict" in shown and "suspect" in shown


def test_list_shows_a_family(keepstep):
    done = keepstep("catalog", "list", "xid.6", columns=140)
    assert done.returncode == 0
    assert "xid.63" in done.stdout and "xid.79" not in done.stdout
    rows = json.loads(keepstep("catalog", "list", "--json").stdout)
    assert "xid.79" in rows and rows["xid.79"]["failure_class"] == "gpu.fallen_off_bus"
    assert "no signal begins with" in keepstep("catalog", "list", "zzz").stdout


def test_rules_are_listed_with_their_modes(keepstep, tmp_path):
    names = [rule["rule"] for rule in json.loads(keepstep("catalog", "rules", "--json").stdout)]
    assert len(names) == len(set(names)) > 10
    mine = tmp_path / "mine.toml"
    mine.write_text(f'[rule.{names[-1]}]\nmode = "shadow"\n')
    shown = json.loads(keepstep("catalog", "rules", "--catalog", mine, "--json").stdout)
    assert [rule["rule"] for rule in shown if rule["mode"] == "shadow"] == [names[-1]]
    assert names[-1] in keepstep("catalog", "rules", columns=140).stdout


def test_check_says_what_a_file_changes(keepstep, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text(
        '[signal."xid.63"]\nurgency = "next_checkpoint"\n'
        '[signal."site.chiller"]\ncause = "power"\nfailure_class = "thermal.facility"\nscope = "rack"\n'
        'verdict = "faulty"\ntext = "the chiller of the row is down"\n'
    )
    done = keepstep("catalog", "check", mine)
    assert done.returncode == 0
    assert "1 new rows (site.chiller), 1 changed (xid.63)" in done.stdout
    explained = keepstep("catalog", "explain", "site.chiller", "--catalog", mine).stdout
    assert "the chiller of the row is down" in explained and "mine.toml" in explained


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('[signal."xid.63"]\nverdict = "broken"\n', "verdict"),
        ('[signal."xid.63"]\nseverity = "high"\n', "severity"),
        ('[signal."site.x"]\nverdict = "faulty"\n', "needs cause"),
        ('[rule.gpu_lost]\nmode = "sometimes"\n', "observe, shadow, act"),
        ("[signals]\n", "[signal.…]"),
        ("verdict = \n", "mine.toml"),
    ],
)
def test_a_file_that_is_wrong_is_refused_by_name_and_place(keepstep, tmp_path, text, told):
    mine = tmp_path / "mine.toml"
    mine.write_text(text)
    done = keepstep("catalog", "check", mine)
    assert done.returncode == 1
    assert told in done.stderr and "mine.toml" in done.stderr


def test_a_file_that_is_not_there_is_named(keepstep, tmp_path):
    done = keepstep("catalog", "check", tmp_path / "none.toml")
    assert done.returncode == 1
    assert "none.toml" in done.stderr
