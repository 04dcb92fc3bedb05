"""``keepstep diagnose`` on folders of evidence: the text, the JSON, and exit codes that scripts can rely on."""

import gzip
import json
import lzma
import re
import shutil
from pathlib import Path

import msgspec
import pytest

from keepstep.cli.app import add_late
from keepstep.cli.diagnose import DiagnosisView

from .evidence import EXAMPLE, HEALTHY_CARD, HEALTHY_KERNEL, LOST_CARD, OWN_BUG, ROOT

add_late(["diagnose"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The example, under names that say nothing."""
    where = tmp_path / "evidence"
    (where / "sub").mkdir(parents=True)
    for source, name in (("kernel.log", "a"), ("rank3.out", "b.png"), ("rank12.out", "c"), ("notes.txt", "letter")):
        shutil.copy(EXAMPLE / source, where / name)
    (where / "sub" / "d").write_text((EXAMPLE / "cards.txt").read_text())
    return where


def decoded(text: str) -> DiagnosisView:
    return msgspec.json.decode(text, type=DiagnosisView)


def test_a_folder_is_told_as_one_incident(folder, keepstep):
    done = keepstep("diagnose", folder, columns=200)
    assert done.returncode == 3
    text = "\n".join(line.rstrip() for line in done.stdout.splitlines())
    assert text.count("incident: ") == 1 and "\nalso: " not in text
    assert "incident: gpu-17/gpu/0000:9b:00: the card has fallen off the PCIe bus" in text
    for line in (
        "4 files read",
        "  cause       device (gpu.fallen_off_bus), ",
        "  scope       card: gpu-17/gpu/0000:9b:00",
        "  resource    quarantine+reboot",
        "  job         restart_elsewhere",
        "  for         xid.79 x2: NVRM: Xid (PCI:0000:9b:00): 79",
        f"({folder}/a:3)",
        "not read: 1 file in no form that is known",
        f"  {folder}/letter",
    ):
        assert line in text


def test_the_json_has_every_signal_with_file_and_line(folder, keepstep):
    done = keepstep("diagnose", folder, "--json")
    assert done.returncode == 3
    found = decoded(done.stdout)
    (incident,) = found.incidents
    assert (incident.cause, incident.class_, incident.scope) == ("device", "gpu.fallen_off_bus", "card")
    assert incident.resource == "gpu-17/gpu/0000:9b:00"
    assert (incident.resource_action, incident.job_action) == ("quarantine+reboot", "restart_elsewhere")
    assert (incident.evidence_for[0].file, incident.evidence_for[0].line) == (f"{folder}/a", 3)
    assert {Path(file.file).name: file.read_as for file in found.files} == {
        "a": "kernel_log",
        "b.png": "job_log",
        "c": "job_log",
        "d": "nvidia_smi",
    }
    assert found.unread == [f"{folder}/letter"]
    signals = [signal for file in found.files for signal in file.signals]
    assert all(signal.file == file.file and signal.line > 0 for file in found.files for signal in file.signals)
    assert "xid.79" in [signal.signal for signal in signals]
    raw = json.loads(done.stdout)
    assert raw["incidents"][0]["class"] == "gpu.fallen_off_bus"
    assert {"file", "line", "class", "scope", "resource", "verdict", "job_urgency"} <= raw["files"][0]["signals"][
        0
    ].keys()


def test_the_error_of_the_rank_on_a_lost_card_is_no_bug_of_the_program(folder, keepstep):
    found = decoded(keepstep("diagnose", folder, "--json").stdout)
    (error,) = [s for file in found.files for s in file.signals if s.resource == "rank/3"]
    assert error.verdict == "benign" and "xid.79" in error.because[-1]
    alone = decoded(keepstep("diagnose", folder / "b.png", "--json").stdout)
    assert [(i.scope, i.resource_action) for i in alone.incidents] == [("job", "none")]


def test_the_rank_that_waited_for_the_lost_one_is_its_victim(folder, keepstep):
    found = decoded(keepstep("diagnose", folder, "--json").stdout)
    waited = [s for file in found.files for s in file.signals if s.file == f"{folder}/c"]
    assert waited and all(s.verdict == "benign" and "victim" in s.because[-1] for s in waited)


def test_the_how_to_shows_what_the_example_gives(keepstep, monkeypatch):
    page = (ROOT / "docs" / "how-to" / "diagnose-a-failed-run.md").read_text()
    shown = re.search(r"```text\n(.*?)```", page, re.DOTALL)
    monkeypatch.chdir(ROOT)
    text = keepstep("diagnose", "examples/evidence", columns=100).stdout
    assert shown is not None
    assert shown[1] == "".join(line.rstrip() + "\n" for line in text.splitlines())


def test_the_order_of_the_paths_does_not_matter(folder, keepstep):
    files = [folder / "sub" / "d", folder / "b.png", folder / "a"]
    one, other = keepstep("diagnose", *files, "--json"), keepstep("diagnose", *reversed(files), "--json")
    assert one.stdout == other.stdout


def test_a_healthy_folder_ends_with_0(tmp_path, keepstep):
    (tmp_path / "log").write_text(HEALTHY_KERNEL)
    (tmp_path / "cards").write_text(HEALTHY_CARD)
    done = keepstep("diagnose", tmp_path / "log", tmp_path / "cards")
    assert done.returncode == 0
    assert "no fault found in what was read" in done.stdout
    assert decoded(keepstep("diagnose", tmp_path / "log", "--json").stdout).incidents == []


def test_nothing_that_could_be_read_ends_with_1_and_says_what_would_help(tmp_path, keepstep):
    (tmp_path / "x").write_text("nothing\n")
    done = keepstep("diagnose", tmp_path / "x")
    assert done.returncode == 1
    assert "nothing here is evidence in a form that is known" in done.stdout
    assert "the kernel log of the node" in done.stdout


def test_a_path_that_is_not_there_is_named(tmp_path, keepstep):
    done = keepstep("diagnose", tmp_path / "nowhere")
    assert done.returncode == 1
    assert f"{tmp_path / 'nowhere'} does not exist" in done.stderr
    assert done.stdout == ""


def test_the_bug_of_a_program_blames_no_hardware(tmp_path, keepstep):
    (tmp_path / "out").write_text(OWN_BUG)
    (incident,) = decoded(keepstep("diagnose", tmp_path / "out", "--json").stdout).incidents
    assert (incident.cause, incident.scope, incident.resource) == ("application", "job", "rank/3")
    assert (incident.resource_action, incident.job_action) == ("none", "restart")


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gz", "xz"])
def test_packed_files_are_read_whatever_they_are_called(tmp_path, keepstep, pack):
    (tmp_path / "log").write_bytes(pack(LOST_CARD.encode()))
    done = keepstep("diagnose", tmp_path / "log", "--json")
    assert done.returncode == 3
    assert [i.class_ for i in decoded(done.stdout).incidents] == ["gpu.fallen_off_bus"]


def test_a_packed_file_that_is_cut_off_is_named_and_the_rest_is_read(tmp_path, keepstep):
    (tmp_path / "log").write_text(LOST_CARD)
    (tmp_path / "cut").write_bytes(gzip.compress(LOST_CARD.encode())[:40])
    found = decoded(keepstep("diagnose", tmp_path, "--json").stdout)
    assert len(found.incidents) == 1
    assert [name.partition(":")[0] for name in found.unread] == [f"{tmp_path}/cut"]


def test_rows_of_the_site_change_the_verdict(folder, tmp_path, keepstep):
    mine = tmp_path / "mine.toml"
    mine.write_text('[signal."xid.79"]\nremedy = "replace"\ntext = "lost, as so often with these risers"\n')
    found = decoded(keepstep("diagnose", folder, "--catalog", mine, "--json").stdout)
    assert found.catalog.endswith("+mine.toml")
    (incident,) = found.incidents
    assert incident.resource_action == "quarantine+replace"
    assert "these risers" in incident.summary


def test_rows_that_are_wrong_end_the_program_before_anything_is_judged(folder, tmp_path, keepstep):
    mine = tmp_path / "mine.toml"
    mine.write_text('[signal."xid.79"]\nverdict = "broken"\n')
    done = keepstep("diagnose", folder, "--catalog", mine)
    assert done.returncode == 1
    assert "xid.79" in done.stderr and "verdict" in done.stderr


def test_all_lists_what_is_benign_as_well(folder, keepstep):
    assert "seen, and no fault by itself" not in keepstep("diagnose", folder, columns=200).stdout
    assert "benign" in keepstep("diagnose", folder, "--all", columns=200).stdout


def test_the_text_fits_the_terminal(folder, keepstep):
    lines = keepstep("diagnose", folder, columns=80).stdout.splitlines()
    assert max(len(line) for line in lines) <= 80
