"""`keepstep checkpoint adopt`: what is taken in, what is refused, and what becomes of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 60.0
DAMAGED, WRONG_INPUT = 1, 2


@pytest.fixture
def foreign(tmp_path):
    """Two torch.save files, and one that was cut short."""
    torch = pytest.importorskip("torch")
    folder = tmp_path / "foreign"
    folder.mkdir()
    for step in (9, 10, 11):
        state = {"model": {"w": torch.full((500,), float(step))}, "optimizer": {"state": {}}, "step": step}
        torch.save(state, folder / f"checkpoint-{step}.pt")
    os.truncate(folder / "checkpoint-11.pt", 1500)
    return folder


def test_adopt_registers_what_is_whole_and_refuses_the_rest_with_reasons(ask, store, foreign):
    answers = ask("adopt", foreign, "--reason", "the old run", "--store", store, code=DAMAGED)["checkpoints"]
    assert [(answer["step"], answer["adopted"]) for answer in answers] == [(9, True), (10, True), (11, False)]
    assert answers[2]["problems"]
    lines = ask("ls", "--store", store)["checkpoints"]
    assert [(line["step"], line["state"]) for line in lines[:2]] == [(10, "adopted"), (9, "adopted")]
    assert lines[0]["path"] == str(foreign / "checkpoint-10.pt")
    shown = ask("show", lines[0]["key"], "--store", store)
    assert (shown["reason"], len(shown["adopted"]["files"])) == ("the old run", 1)


def test_adopting_again_changes_nothing_and_other_bytes_are_another_record(ask, store, foreign):
    path = foreign / "checkpoint-9.pt"
    [first] = ask("adopt", path, "--store", store)["checkpoints"]
    [again] = ask("adopt", path, "--store", store)["checkpoints"]
    assert (first["fresh"], again["fresh"], again["key"]) == (True, False, first["key"])
    shutil.copy(foreign / "checkpoint-10.pt", path)
    [other] = ask("adopt", path, "--store", store)["checkpoints"]
    assert other["fresh"] and other["key"] != first["key"]


def test_verify_finds_an_adopted_file_that_changed(ask, store, foreign):
    [answer] = ask("adopt", foreign / "checkpoint-9.pt", "--store", store)["checkpoints"]
    assert ask("verify", answer["key"], "--store", store)["checkpoints"][0]["result"] == "sound"
    data = bytearray((foreign / "checkpoint-9.pt").read_bytes())
    data[len(data) // 2] ^= 1
    (foreign / "checkpoint-9.pt").write_bytes(data)
    verdicts = ask("verify", "--all", "--store", store, code=DAMAGED)["checkpoints"]
    assert [verdict["result"] for verdict in verdicts] == ["sound"] * 3 + ["damaged"]
    assert "checkpoint-9.pt (content)" in verdicts[-1]["reason"]


def test_an_adopted_one_is_not_restored_from_here(ask, refused, store, foreign, tmp_path):
    [answer] = ask("adopt", foreign / "checkpoint-9.pt", "--store", store)["checkpoints"]
    said = refused(WRONG_INPUT, "restore", answer["key"], "--to", tmp_path / "out", "--store", store)
    assert str(foreign / "checkpoint-9.pt") in said


def test_a_new_store_needs_a_job_to_adopt_for(ask, refused, foreign, tmp_path):
    where = (foreign / "checkpoint-9.pt", "--store", tmp_path / "new")
    assert "--job" in refused(WRONG_INPUT, "adopt", *where)
    assert ask("adopt", *where, "--job", "old", "--dry-run")["checkpoints"][0]["key"] == ""
    assert not (tmp_path / "new").exists()
    ask("adopt", *where, "--job", "old")
    assert ask("ls", "--store", tmp_path / "new")["job"] == "old"


def test_what_is_no_checkpoint_is_refused(ask, refused, store, tmp_path):
    (tmp_path / "notes.txt").write_text("not one")
    [answer] = ask("adopt", tmp_path / "notes.txt", "--store", store, code=DAMAGED)["checkpoints"]
    assert "no checkpoint that keepstep knows" in answer["problems"][0]
    assert "there is no" in refused(WRONG_INPUT, "adopt", tmp_path / "absent", "--store", store)


def test_watch_adopts_what_is_completed_until_it_is_interrupted(ask, store, foreign):
    argv = [sys.executable, "-m", "keepstep.cli", "checkpoint", "adopt", str(foreign), "--watch", "--json"]
    argv += ["--settle-s", "0", "--poll-s", "0.05", "--store", str(store)]
    process = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert [answer["step"] for answer in first] == [9, 10]
        shutil.copy(foreign / "checkpoint-9.pt", foreign / "checkpoint-12.pt.part")
        (foreign / "checkpoint-12.pt.part").rename(foreign / "checkpoint-12.pt")
        later = json.loads(process.stdout.readline())
        assert (Path(later["path"]).name, later["adopted"]) == ("checkpoint-12.pt", True)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said) == (0, "")
    finally:
        process.kill()
        process.communicate()
    adopted = [line for line in ask("ls", "--store", store)["checkpoints"] if line["state"] == "adopted"]
    assert len(adopted) == 3
