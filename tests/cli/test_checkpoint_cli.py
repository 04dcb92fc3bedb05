"""`keepstep checkpoint`: what it shows, what it changes, and how it ends when something is wrong."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from keepstep.checkpoint.adopt.load import load
from keepstep.checkpoint.state.shards import Shard

from .checkpoints import FROZEN, Job, flip, new_keys, repository, trees

DEADLINE_S = 60.0
DAMAGED, WRONG_INPUT, KEY_TROUBLE, STORE_TROUBLE = 1, 2, 3, 4


def key_of(ask, store: Path, step: int) -> str:
    [line] = [line for line in ask("ls", "--store", store)["checkpoints"] if line["step"] == step]
    return line["key"]


# ---- ls and show


def test_ls_lists_the_newest_first(ask, store):
    found = ask("ls", "--store", store)
    assert (found["store"], found["job"], found["damaged"]) == (str(store), "gpt", {})
    lines = found["checkpoints"]
    assert [line["step"] for line in lines] == [300, 200, 100]
    assert {(line["state"], line["ranks"], line["pinned"]) for line in lines} == {("verified", 2, False)}
    assert all(line["size_bytes"] > FROZEN.nbytes for line in lines)
    assert lines[0]["at_unix_s"] > lines[1]["at_unix_s"]


def test_ls_says_what_the_log_cannot_prove(ask, keepstep, store):
    [record] = [path for path in (store / "commits").iterdir() if path.stem == key_of(ask, store, 200)]
    record.write_bytes(record.read_bytes()[:-9])
    found = ask("ls", "--store", store)
    assert [line["step"] for line in found["checkpoints"]] == [300, 100]
    assert list(found["damaged"]) == [str(int(record.stem))]
    assert record.name in keepstep("checkpoint", "ls", "--store", store).stderr
    assert ask("verify", "--store", store, code=DAMAGED)["damaged"]


def test_ls_of_a_store_with_nothing_in_it(keepstep, tmp_path):
    (tmp_path / "empty").mkdir()
    done = keepstep("checkpoint", "ls", "--store", tmp_path / "empty")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no checkpoint" in done.stdout


def test_ls_tells_where_whole_copies_are(ask, store, tmp_path):
    from keepstep.checkpoint.repository.copies import StoreCopies
    from keepstep.checkpoint.repository.tiers import Tier, Tiers
    from keepstep.checkpoint.stores.posix import PosixStore

    (tmp_path / "copies").mkdir()
    tier = Tier(copies=StoreCopies(PosixStore(tmp_path / "copies")))
    Tiers(repository(store), [tier]).copy(key_of(ask, store, 200), tier)
    lines = ask("ls", "--store", store, "--copies-in", tmp_path / "copies")["checkpoints"]
    assert {line["step"]: line["copies"] for line in lines} == {100: [], 200: [str(tmp_path / "copies")], 300: []}


def test_show_tells_groups_packs_and_what_they_lean_on(ask, store):
    found = ask("show", "newest", "--store", store)
    assert found["checkpoint"]["step"] == 300
    assert found["parent"] == key_of(ask, store, 200)
    groups = {group["name"]: group for group in found["groups"]}
    assert (groups["model"]["versions"], groups["rng"]["versions"]) == (1, 2)
    assert groups["model"]["old_bytes"] >= FROZEN.nbytes, "it has not changed since step 100"
    leant_on = [pack for pack in found["packs"] if not pack["own"]]
    assert [pack["step"] for pack in leant_on] == [100]
    assert all(pack["chunks"] > 0 for pack in found["packs"])
    assert [happened["what"] for happened in found["history"]] == ["commit", "verified"]


def test_show_tells_sharded_tensors(ask, tmp_path):
    whole = np.arange(12.0).reshape(4, 3)
    Job(tmp_path / "s").save(1, [{"m": {"w": Shard(whole[n : n + 2], (4, 3), (n, 0))}} for n in (0, 2)])
    [tensor] = ask("show", "newest", "--store", tmp_path / "s")["sharded"]
    assert tensor == {"group": "m", "path": "w", "dtype": "<f8", "shape": [4, 3], "parts": 2}


def test_show_says_what_is_missing_and_shows_the_rest(ask, store):
    flipped = flip(store, 300)
    flipped.unlink()
    found = ask("show", "newest", "--store", store)
    assert any(flipped.name in note for note in found["notes"])
    assert [pack["chunks"] for pack in found["packs"] if flipped.name in pack["key"]] == [None]


@pytest.mark.parametrize("columns", [60, 80, 140])
@pytest.mark.parametrize("command", ["ls", "show newest", "verify --all", "gc --dry-run", "diff 1 newest", "plan"])
def test_tables_fit_the_terminal(keepstep, store, command, columns):
    done = keepstep("checkpoint", *command.split(), "--store", store, columns=columns)
    assert done.returncode in (0, 1) and done.stderr == "", done.stderr
    assert max(len(line) for line in done.stdout.splitlines()) <= columns


# ---- which store, which job, which key


def test_the_store_is_found_where_keepstep_makes_it(ask, refused, store, tmp_path, monkeypatch):
    monkeypatch.setenv("KEEPSTEP_STATE_DIR", str(tmp_path / "state"))
    assert "--store" in refused(WRONG_INPUT, "ls")
    (tmp_path / "state" / "checkpoints").mkdir(parents=True)
    shutil.copytree(store, tmp_path / "state" / "checkpoints" / "gpt")
    assert ask("ls")["store"] == str(tmp_path / "state" / "checkpoints" / "gpt")
    shutil.copytree(store, tmp_path / "checkpoints" / "train")
    assert "checkpoints/train" in refused(WRONG_INPUT, "ls")
    assert ask("ls", "--job", "gpt")["store"] == str(tmp_path / "state" / "checkpoints" / "gpt")
    monkeypatch.setenv("KEEPSTEP_CHECKPOINT_DIR", str(store))
    assert ask("ls")["store"] == str(store)


def test_of_several_jobs_one_must_be_named(ask, refused, store):
    Job(store, 1, job="bert").save(7)
    assert "gpt, bert" in refused(WRONG_INPUT, "ls", "--store", store)
    assert [line["step"] for line in ask("ls", "--store", store, "--job", "bert")["checkpoints"]] == [7]
    assert "gpt, bert" in refused(WRONG_INPUT, "ls", "--store", store, "--job", "nope")


@pytest.mark.parametrize("key", ["999", "nope", "-1e5", "0"])
@pytest.mark.parametrize("command", ["show", "verify", "pin"])
def test_an_unknown_key_is_refused_with_those_that_there_are(refused, store, command, key):
    said = refused(WRONG_INPUT, command, "--store", store, "--", key)
    assert repr(key) in said
    assert "there are: " in said


@pytest.mark.parametrize("address", ["s3://", "ftp://x/y", "s3://user:secret@bucket/x"])
def test_an_address_that_cannot_be_one_is_wrong_input(refused, address):
    assert "secret" not in refused(WRONG_INPUT, "ls", "--store", address)


@pytest.mark.parametrize("command", ["ls", "verify", "gc", "plan"])
def test_a_store_that_is_not_there_is_not_an_empty_one(refused, tmp_path, command):
    assert "there is no directory" in refused(STORE_TROUBLE, command, "--store", tmp_path / "absent")
    assert not (tmp_path / "absent").exists()


def test_a_store_that_cannot_be_read_is_told_from_damage(keepstep, store):
    [record] = [path for path in (store / "commits").iterdir() if path.name.endswith("1.json")]
    record.unlink()
    record.mkdir()
    (record / "x").write_bytes(b"")
    log = store / "commits"
    log.rename(store / "aside")
    log.symlink_to(log)
    done = keepstep("checkpoint", "ls", "--store", store)
    assert done.returncode == STORE_TROUBLE, done.stdout
    assert done.stderr.startswith("keepstep: ")
    assert "Errno" not in done.stderr


def test_a_server_that_does_not_answer_is_a_store_that_fails(refused, monkeypatch):
    pytest.importorskip("obstore")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "nobody")
        said = refused(STORE_TROUBLE, "ls", "--store", f"s3://bucket/x?endpoint=http://127.0.0.1:{port}")
    assert "cannot be reached" in said


# ---- verify


def test_verify_marks_what_it_found(ask, store):
    flip(store, 300)
    [verdict] = ask("verify", "--store", store, "--dry-run", code=DAMAGED)["checkpoints"]
    assert (verdict["result"], verdict["state"]) == ("damaged", "verified")
    [verdict] = ask("verify", "--store", store, code=DAMAGED)["checkpoints"]
    assert (verdict["step"], verdict["result"], verdict["state"]) == (300, "damaged", "corrupt")
    assert "digest" in verdict["reason"]
    assert ask("ls", "--store", store)["checkpoints"][0]["state"] == "corrupt"
    flip(store, 300)
    [verdict] = ask("verify", "newest", "--store", store)["checkpoints"]
    assert (verdict["result"], verdict["state"]) == ("sound", "verified")


def test_verify_all_goes_on_after_a_damaged_one(ask, store):
    flip(store, 200)
    verdicts = ask("verify", "--all", "--store", store, code=DAMAGED)["checkpoints"]
    assert {verdict["step"]: verdict["result"] for verdict in verdicts} == {100: "sound", 200: "damaged", 300: "sound"}


def test_bytes_that_are_right_do_not_clear_a_suspicion_unless_somebody_says_so(ask, store):
    repository(store).mark(key_of(ask, store, 300), "suspect", "the loss diverged twice")
    [verdict] = ask("verify", "--store", store)["checkpoints"]
    assert (verdict["result"], verdict["state"]) == ("sound", "suspect")
    assert "the loss diverged twice" in verdict["reason"]
    [verdict] = ask("verify", "--store", store, "--trust")["checkpoints"]
    assert verdict["state"] == "verified"


def test_sealed_checkpoints_need_their_key_to_be_verified_and_none_to_be_scrubbed(ask, tmp_path):
    keys, others = new_keys(tmp_path / "keys"), new_keys(tmp_path / "others")
    Job(tmp_path / "s", 1, keys=keys).save(5)
    where = ("--store", tmp_path / "s")
    assert ask("verify", *where, "--keys", keys)["checkpoints"][0]["result"] == "sound"
    for wrong in ((), ("--keys", others), ("--keys-command", "/bin/false")):
        [verdict] = ask("verify", *where, *wrong, code=KEY_TROUBLE)["checkpoints"]
        assert (verdict["result"], verdict["state"]) == ("no key", "verified"), wrong
    assert ask("verify", "--stored-only", *where)["checkpoints"][0]["result"] == "sound"
    flip(tmp_path / "s", 5)
    [verdict] = ask("verify", "--stored-only", *where, code=DAMAGED)["checkpoints"]
    assert (verdict["result"], verdict["state"]) == ("damaged", "corrupt")
    assert ask("show", "newest", *where, "--keys", keys)["sessions"]


def test_the_stored_bytes_alone_never_make_it_verified(ask, store):
    repository(store).mark(key_of(ask, store, 300), "corrupt", "by hand")
    [verdict] = ask("verify", "--stored-only", "--store", store)["checkpoints"]
    assert (verdict["result"], verdict["state"]) == ("sound", "corrupt")


def test_a_key_problem_ends_other_commands_with_its_code(refused, tmp_path):
    Job(tmp_path / "s", 1, keys=new_keys(tmp_path / "keys")).save(5)
    said = refused(KEY_TROUBLE, "export", "newest", "--to", tmp_path / "out", "--store", tmp_path / "s")
    assert "sealed" in said
    assert not (tmp_path / "out").exists()


def test_progress_is_for_terminals_only(keepstep, store):
    assert keepstep("checkpoint", "verify", "--all", "--store", store).stderr == ""


# ---- diff


def test_diff_tells_what_differs_and_by_how_much(ask, keepstep, tmp_path):
    job = Job(tmp_path / "s", 1)
    first = trees(1)
    second = trees(1)
    second["model"] |= {"w": first["model"]["w"] + np.eye(1, 300, 7)[0] * 0.5, "step": 2}
    job.save(1, [first])
    job.save(2, [second])
    keys = [key_of(ask, tmp_path / "s", step) for step in (1, 2)]
    found = ask("diff", *keys, "--store", tmp_path / "s", code=1)
    numbers = {one["place"]: one["numbers"] for one in found["differences"]}
    assert set(numbers) == {"w", "step"}
    assert (numbers["w"]["differing"], numbers["w"]["max_abs"]) == (1, pytest.approx(0.5))
    shown = keepstep("checkpoint", "diff", *keys, "--store", tmp_path / "s").stdout
    assert "1 of 300 elements" in shown
    assert ask("diff", keys[1], "newest", "--store", tmp_path / "s")["same"]


def test_diff_of_worlds_of_two_sizes_is_no_equality(ask, refused, tmp_path):
    for world in (1, 2):
        Job(tmp_path / "s", world).save(world, [{"model": {"x": 1}}] * world)
    keys = [key_of(ask, tmp_path / "s", step) for step in (1, 2)]
    found = ask("diff", *keys, "--store", tmp_path / "s", code=1)
    assert (found["worlds"], found["differences"], found["same"]) == ([1, 2], [], False)
    assert ask("diff", *keys, "--rank", 0, "--store", tmp_path / "s")["same"]
    refused(WRONG_INPUT, "diff", *keys, "--rank", 1, "--store", tmp_path / "s")


# ---- restore and export


def test_restore_writes_the_state_of_one_rank(ask, refused, store, tmp_path):
    told = ask("restore", "newest", "--rank", 1, "--to", tmp_path / "out", "--store", store)
    assert (told["step"], told["groups"]) == (300, ["model", "rng"])
    groups = load(tmp_path / "out").groups
    assert groups["model"]["w"].tobytes() == trees(300)["model"]["w"].tobytes()
    assert groups["rng"]["rank"] == 1
    assert "exists" in refused(WRONG_INPUT, "restore", "newest", "--to", tmp_path / "out", "--store", store)
    refused(WRONG_INPUT, "restore", "newest", "--rank", 2, "--to", tmp_path / "more", "--store", store)
    assert not list((store / "leases").glob("*")), "it is given back"


def test_restore_keeps_parts_of_sharded_tensors_as_parts(ask, tmp_path):
    whole = np.arange(12.0).reshape(4, 3)
    Job(tmp_path / "s").save(1, [{"m": {"w": Shard(whole[n : n + 2], (4, 3), (n, 0))}} for n in (0, 2)])
    ask("restore", "newest", "--rank", 1, "--to", tmp_path / "out", "--store", tmp_path / "s")
    shard = load(tmp_path / "out").groups["m"]["w"]
    assert (shard.shape, shard.offset) == ((4, 3), (2, 0))
    assert shard.data.tolist() == whole[2:].tolist()


@pytest.mark.parametrize("format", ["safetensors", "dcp"])
def test_export_puts_the_whole_together(ask, tmp_path, format):
    whole = np.arange(12.0).reshape(4, 3)
    ranks = [
        {"m": {"w": Shard(whole[n : n + 2], (4, 3), (n, 0)), "lr": 0.1}, "rng": {"words": np.arange(3) + n}}
        for n in (0, 2)
    ]
    Job(tmp_path / "s").save(1, ranks)
    ask("export", "newest", "--format", format, "--to", tmp_path / "out", "--store", tmp_path / "s")
    imported = load(tmp_path / "out")
    assert imported.format == format
    assert imported.groups["m"]["w"].tolist() == whole.tolist()
    assert imported.groups["m"]["lr"] == 0.1
    assert imported.groups["rng"]["words"].tolist() == [0, 1, 2]
    assert imported.groups["rng.rank1"]["words"].tolist() == [2, 3, 4]


def test_nothing_is_restored_from_damaged_bytes(refused, store, tmp_path):
    flip(store, 300)
    # Which bytes of it are state, and which unchanged ones of step 100, is the format's matter: damage both.
    flip(store, 100)
    assert "digest" in refused(DAMAGED, "restore", "newest", "--to", tmp_path / "out", "--store", store)
    assert not (tmp_path / "out").exists()


# ---- gc, pin, unpin


def test_gc_says_what_would_go_and_why_and_then_does_it(ask, store):
    def fates(*more: object) -> dict[int, bool]:
        found = ask("gc", "--keep", 2, "--grace-s", 0, *more, "--store", store)
        assert all(fate["why"] for fate in found["checkpoints"])
        return {fate["step"]: fate["goes"] for fate in found["checkpoints"]}

    before = sorted(path for path in store.rglob("*") if "leases" not in path.parts)
    assert fates("--dry-run") == {100: True, 200: False, 300: False}
    assert sorted(path for path in store.rglob("*") if "leases" not in path.parts) == before
    assert fates() == {100: True, 200: False, 300: False}
    assert [line["step"] for line in ask("ls", "--store", store)["checkpoints"]] == [300, 200]
    assert {verdict["result"] for verdict in ask("verify", "--all", "--store", store)["checkpoints"]} == {"sound"}


def test_a_pinned_checkpoint_stays_until_it_is_unpinned(ask, keepstep, refused, store):
    key = key_of(ask, store, 100)
    assert keepstep("checkpoint", "pin", key, "--reason", "in the paper", "--store", store).returncode == 0
    assert [line["pinned"] for line in ask("ls", "--store", store)["checkpoints"]] == [False, False, True]
    fates = ask("gc", "--keep", 1, "--store", store)["checkpoints"]
    assert {fate["step"]: fate["why"] for fate in fates}[100] == "pinned"
    assert ask("show", key, "--store", store)["history"][-1]["reason"] == "in the paper"
    assert keepstep("checkpoint", "unpin", key, "--store", store).returncode == 0
    assert "not pinned" in refused(WRONG_INPUT, "unpin", key, "--store", store)
    assert [fate["goes"] for fate in ask("gc", "--keep", 1, "--store", store)["checkpoints"]] == [False, False, True]


def test_gc_tells_of_saves_that_were_never_committed(ask, keepstep, store):
    """One rank of two wrote its part of step 250, and died."""
    dead = Job(store, 2)
    dead.save_part(250, 0)
    arguments = ("gc", "--grace-s", 0, "--store", store)
    [left] = ask(*arguments, "--dry-run")["leftovers"]
    assert left["step"] == 250 and left["size_bytes"] > FROZEN.nbytes
    assert "never committed" in keepstep("checkpoint", *arguments, "--dry-run").stdout
    assert ask("gc", "--dry-run", "--store", store)["leftovers"] == [], "within the grace of an hour"
    removed = ask(*arguments)["removed"]
    assert removed and all(left["folder"] in key for key in removed)
    assert ask(*arguments, "--dry-run")["leftovers"] == []


def test_gc_never_goes_below_the_minimum(ask, store):
    found = ask("gc", "--keep", 1, "--min-valid", 4, "--store", store)
    assert (found["expired"], found["removed"]) == ([], [])
    assert "only 3 of the 4" in found["checkpoints"][0]["why"]


# ---- repair


def test_repair_puts_back_what_was_damaged_or_lost(ask, store, tmp_path):
    shutil.copytree(store, tmp_path / "copy")
    flipped = flip(store, 300)
    [manifest] = (store / "steps").glob("00000300-*/*.manifest")
    manifest.unlink()
    assert ask("verify", "--store", store, code=DAMAGED)["checkpoints"][0]["state"] == "corrupt"
    found = ask("repair", "newest", "--from", tmp_path / "copy", "--store", store)
    [result] = found["checkpoints"]
    assert (result["sound"], result["state"]) == (True, "verified")
    assert {Path(one["key"]).name for one in result["repaired"]} == {flipped.name, manifest.name}
    assert ask("verify", "--all", "--store", store)["damaged"] == {}
    assert not ask("repair", "--all", "--from", tmp_path / "copy", "--store", store)["checkpoints"][0]["repaired"]


def test_repair_says_what_nobody_has(ask, store, tmp_path):
    (tmp_path / "nothing").mkdir()
    flipped = flip(store, 300)
    [result] = ask("repair", "--from", tmp_path / "nothing", "--store", store, code=DAMAGED)["checkpoints"]
    assert (result["sound"], result["state"]) == (False, "corrupt")
    assert flipped.name in result["reason"]


# ---- plan


def test_plan_explains_a_choice_from_numbers_alone(ask, keepstep):
    arguments = ("--size-gb", 140, "--nodes", 16, "--mtbf-h", 12, "--stall-s", 2, "--write-s", 40)
    found = ask("plan", *arguments, "--tier", "memory", "--tier", "disk")
    plan = found["plan"]
    assert [tier["name"] for tier in plan["choice"]["tiers"]] == ["memory", "disk"]
    # Failures of all scopes together come every 12 hours.
    assert sum(belief["prior"]["per_day"] for belief in plan["inputs"]["beliefs"]) == pytest.approx(2)
    # Young's formula: the disk's saves cost no stall of their own, so both tiers have one interval.
    rate = sum(plan["division"]["rates_per_s"])
    assert plan["choice"]["tiers"][0]["interval_s"] == pytest.approx((2 * 2 / rate) ** 0.5, rel=0.05)
    shown = keepstep("checkpoint", "plan", *arguments).stdout
    for word in ("What was chosen", "How often failures come", "What would change it", "--mtbf-h 12"):
        assert word in shown


def test_plan_reads_sizes_and_times_from_the_log(ask, store):
    found = ask("plan", "--store", store)
    assert (found["log"]["commits"], found["log"]["read_backs"]) == (3, 3)
    assert found["log"]["size_bytes"] == ask("ls", "--store", store)["checkpoints"][0]["size_bytes"]
    disk = found["plan"]["inputs"]["tiers"][1]
    assert (disk["name"], disk["restart"]["samples"]) == ("disk", 3)
    assert found["plan"]["inputs"]["step_s"] == pytest.approx(found["log"]["interval_s"] / 100, rel=0.5)


def test_plan_needs_a_size_or_times(refused, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "--size-gb" in refused(WRONG_INPUT, "plan", "--store", tmp_path / "empty")
    assert "there are: memory" in refused(WRONG_INPUT, "plan", "--tier", "tape", "--size-gb", 1)
    assert "--mtbf-h" in refused(WRONG_INPUT, "plan", "--size-gb", 1, "--mtbf-h", 0)


# ---- the table of commands


def test_help_loads_no_checkpoint_code():
    code = (
        "import sys; from typer.testing import CliRunner; from keepstep.cli.app import app;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "print([name for name in ('numpy', 'torch', 'xxhash', 'blake3', 'keepstep.checkpoint') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_command_prints_one_json_document(keepstep, store):
    for command in ("ls", "show newest", "verify", "diff newest newest", "gc --dry-run", "plan"):
        done = keepstep("checkpoint", *command.split(), "--store", store, "--json")
        assert done.stderr == ""
        msgspec.json.decode(done.stdout)
