"""The session over real checkpoints and a real snapshot server. Owns D1, D8, D10, D16, D17 and E9 as a script sees them."""

import copy
import operator
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import keepstep.wire.progress as wire
from keepstep.checkpoint.state import generators
from keepstep.train.errors import RestoreFailed, SessionError
from keepstep.train.loop import Session
from keepstep.train.preemption import EXIT_CODE
from keepstep.train.readers import OptimizerReader
from keepstep.train.standalone import standalone
from keepstep.train.worker import RestoreOrder, read_worker

Open = Callable[..., Session]
TOTAL = 17


def run_to(session: Session, job: Any, total: int, *, die_in: int | None = None) -> None:
    """Run the loop; ``die_in`` leaves in the middle of that step, as a crash would."""
    for step in session.steps(total):
        if step == die_in:
            job.model[0].weight.data.fill_(float("nan"))
            return
        job.train_step()


@pytest.fixture
def expected(job_type: Any, in_directory: Open) -> tuple[str, list[int]]:
    """What an uninterrupted run ends with."""
    job = job_type()
    session = in_directory(job.state(), directory="whole", every=1000)
    run_to(session, job, TOTAL)
    session.close()
    return job.fingerprint(), job.ids


@pytest.mark.parametrize("deaths", [[1], [16], [3, 4, 11]])
def test_D1_E3_E9_interrupted_anywhere_it_ends_with_the_same_bits(
    deaths: list[int], job_type: Any, in_directory: Open, expected: tuple[str, list[int]]
) -> None:
    ids: list[int] = []
    for die_in in deaths:
        job = job_type()
        run_to(in_directory(job.state()), job, TOTAL, die_in=die_in)
        ids += job.ids
    job = job_type()
    session = in_directory(job.state())
    assert session.restore() == deaths[-1]
    run_to(session, job, TOTAL)
    assert (job.fingerprint(), ids + job.ids) == expected


def test_D1_interrupted_between_checkpoints_the_steps_are_done_again(
    job_type: Any, in_directory: Open, expected: tuple[str, list[int]]
) -> None:
    job = job_type()
    run_to(in_directory(job.state(), every=5), job, TOTAL, die_in=13)
    job = job_type()
    session = in_directory(job.state(), every=5)
    run_to(session, job, TOTAL)
    assert session.restored_step == 10
    assert job.fingerprint() == expected[0]


def test_D1_snapshots_of_a_dead_rank_restore_it(
    job_type: Any, in_memory: Open, snapshot_server: Any, expected: tuple[str, list[int]]
) -> None:
    snapshot_server.begin(1, 1)
    job = job_type()
    first = in_memory(job.state())
    run_to(first, job, TOTAL, die_in=9)
    inventory = snapshot_server.call(snapshot_server.control.inventory)
    assert max(offer.step for offer in inventory.ram) == 9
    snapshot_server.begin(2, 1)
    order = RestoreOrder(step=9, tier="ram", key="", generation=1, world_size=1)
    again = job_type()
    session = in_memory(again.state(), generation=2, restore=order)
    run_to(session, again, TOTAL)
    assert session.restored_step == 9
    assert (again.fingerprint(), job.ids + again.ids) == expected
    disk = snapshot_server.call(snapshot_server.control.list_disk).disk
    assert [offer.step for offer in disk] == [TOTAL], "the end of the run is durable when the loop ends"


def test_D1_losing_the_snapshot_server_does_not_stop_training(
    job_type: Any, in_memory: Open, snapshot_server: Any, expected: tuple[str, list[int]], caplog: Any
) -> None:
    snapshot_server.begin(1, 1)
    job = job_type()
    session = in_memory(job.state())
    for step in session.steps(TOTAL):
        if step == 5:
            snapshot_server.call(snapshot_server.control.quit)
            snapshot_server.process.wait(120)
        job.train_step()
    assert job.fingerprint() == expected[0]
    assert "training goes on" in caplog.text and "not made durable" in caplog.text


def test_D16_after_a_load_later_saves_have_the_new_state(
    job_type: Any, in_directory: Open, expected: tuple[str, list[int]]
) -> None:
    for die_in in range(2, TOTAL, 4):
        job = job_type()
        run_to(in_directory(job.state()), job, TOTAL, die_in=die_in)
    job = job_type()
    run_to(in_directory(job.state()), job, TOTAL)
    assert job.fingerprint() == expected[0]


def test_D16_state_replaced_while_training_is_what_is_saved(job_type: Any, in_directory: Open) -> None:
    job = job_type()
    session = in_directory(job.state())
    for step in session.steps(6):
        job.train_step()
        if step == 2:
            job.optimizer.load_state_dict(job.optimizer.state_dict())
            job.model[1].running_mean = job.model[1].running_mean + 1.0
            job.model[0].weight.data = job.model[0].weight.data.clone()
        if step == 4:
            job.model[4] = torch.nn.Linear(16, 1)
    saved = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    again = job_type()
    in_directory(again.state()).restore()
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, saved[name]), name


def test_D17_a_snapshot_is_of_the_step_not_of_what_came_after(
    job_type: Any, in_memory: Open, snapshot_server: Any
) -> None:
    snapshot_server.begin(1, 1)
    job = job_type()
    session = in_memory(job.state())
    steps = session.steps(TOTAL)
    next(steps)
    job.train_step()
    next(steps)
    wanted = {name: tensor.clone() for name, tensor in job.model.state_dict().items()}
    for parameter in job.model.parameters():
        parameter.data.fill_(float("nan"))
    snapshot_server.begin(2, 1)
    again = job_type()
    order = RestoreOrder(step=1, tier="ram", key="", generation=1, world_size=1)
    in_memory(again.state(), generation=2, restore=order).restore()
    for name, tensor in again.model.state_dict().items():
        assert torch.equal(tensor, wanted[name]), name


def test_D10_nothing_to_restore_is_a_valid_start(job_type: Any, in_directory: Open) -> None:
    job = job_type()
    session = in_directory(job.state())
    assert session.restore() is None
    assert list(session.steps(0)) == []


def test_a_damaged_newest_checkpoint_is_skipped_and_said(
    job_type: Any, in_directory: Open, tmp_path: Path, caplog: Any
) -> None:
    job = job_type()
    run_to(in_directory(job.state()), job, TOTAL, die_in=6)
    newest = max((tmp_path / "checkpoints" / "steps").iterdir())
    group = max(newest.glob("*.pack"), key=lambda path: path.stat().st_size)
    data = bytearray(group.read_bytes())
    data[100] ^= 1
    group.chmod(0o600)
    group.write_bytes(data)
    assert in_directory(job_type().state()).restore() == 5
    assert "is skipped" in caplog.text and "damaged" in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("scheduler"), "register the same names"),
        (lambda state: state.pop("data"), "data positions"),
        (lambda state: state.update(model=torch.nn.Linear(6, 1)), "only in the model: "),
        (
            lambda state: state["model"].__setitem__(4, torch.nn.Linear(16, 2)),
            r"model.4.weight: the saved shape is \(1, 16",
        ),
        (lambda state: state["model"].double(), "dtype"),
        (
            lambda state: state.update(optimizer=torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])),
            "parameter groups",
        ),
    ],
)
def test_state_that_does_not_fit_changes_nothing(
    change: Callable[[dict[str, Any]], Any], message: str, job_type: Any, in_directory: Open
) -> None:
    job = job_type()
    run_to(in_directory(job.state()), job, 3)
    other = job_type()
    state = other.state()
    change(state)
    before, random_before = other.fingerprint(), torch.get_rng_state()
    with pytest.raises(RestoreFailed, match=message):
        in_directory(state).steps(5)
    assert other.fingerprint() == before
    assert torch.equal(torch.get_rng_state(), random_before)


def test_an_order_that_cannot_be_met_ends_the_rank(job_type: Any, in_memory: Open, snapshot_server: Any) -> None:
    snapshot_server.begin(1, 1)
    order = RestoreOrder(step=4, tier="ram", key="", generation=1, world_size=1)
    job = job_type()
    before = job.fingerprint()
    with pytest.raises(RestoreFailed, match="step 4"):
        in_memory(job.state(), restore=order).steps(9)
    assert job.fingerprint() == before


def test_another_world_size_must_be_declared(job_type: Any, in_directory: Open, caplog: Any) -> None:
    two = [job_type() for _ in range(2)]
    run_to(in_directory(two[0].state(), rank=0, world_size=2), two[0], 4)
    for step in in_directory(two[1].state(), rank=1, world_size=2).steps(4):
        two[1].train_step()
        if step == 3:  # as data parallelism leaves them: equal, but for buffers
            mean = two[1].model[1].running_mean.clone()
            for name in ("model", "optimizer", "scheduler", "scaler", "extra"):
                getattr(two[1], name).load_state_dict(copy.deepcopy(getattr(two[0], name).state_dict()))
            two[1].model[1].running_mean.copy_(mean)
    with pytest.raises(RestoreFailed, match="elastic=True"):
        in_directory(job_type().state(), rank=0, world_size=3).restore()
    numbers = []
    for rank in range(3):
        job = job_type()
        assert in_directory(job.state(), rank=rank, world_size=3, elastic=True).restore() == 4
        numbers.append(float(torch.rand(())))
    assert "rank 2 did not exist" in caplog.text
    assert numbers[2] not in numbers[:2]


def test_ranks_that_differ_are_not_taken_over_by_another_number(job_type: Any, in_directory: Open) -> None:
    for rank in (0, 1):
        job = job_type()
        for _ in in_directory(job.state(), rank=rank, world_size=2).steps(4):
            job.train_step()
            job.model[0].bias.data += rank
    job = job_type()
    before = job.fingerprint()
    with pytest.raises(RestoreFailed, match=r"state differs between ranks.*model\.0\.bias"):
        # Each new rank compares its share of the saved ranks with the first; all of them must succeed.
        in_directory(job.state(), rank=1, world_size=3, elastic=True).restore()
    assert job.fingerprint() == before


def test_an_optimizer_whose_state_was_replaced_is_saved_as_it_is_now(job_type: Any) -> None:
    job = job_type()
    job.train_step()
    reader = OptimizerReader(job.optimizer)
    first, _ = reader.read()
    assert reader.read()[0] is first
    state = copy.deepcopy(job.optimizer.state_dict())
    for each in state["state"].values():
        each["exp_avg"].fill_(5.0)
    job.optimizer.load_state_dict(state)
    now, _ = reader.read()
    live = [value for each in job.optimizer.state.values() for value in each.values()]
    assert all(map(operator.is_, now.leaves, live))


def test_mistakes_of_a_script_are_explained(job_type: Any, in_directory: Open) -> None:
    from torch.utils.data import DataLoader

    with pytest.raises(SessionError, match="has no state_dict and no load_state_dict"):
        in_directory({"thing": object()})
    with pytest.raises(SessionError, match=r"keepstep.resumable\(data\)"):
        in_directory({"data": DataLoader([1, 2, 3])})
    with pytest.raises(SessionError, match="taken by the session"):
        in_directory({"rank": job_type().model})
    job = job_type()
    session = in_directory(job.state())
    run_to(session, job, 3)
    with pytest.raises(SessionError, match="called before"):
        session.steps(9)
    with pytest.raises(SessionError, match="raise the total"):
        in_directory(job_type().state()).steps(2)
    early = job_type()
    early.train_step()
    with pytest.raises(SessionError, match="iterated before"):
        in_directory(early.state()).steps(5)


def test_state_that_cannot_be_saved_is_named_before_the_first_step(in_directory: Open) -> None:
    class Odd:
        def state_dict(self) -> dict[str, Any]:
            return {"inner": [1, {"callback": print}]}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise AssertionError("never loaded")

    with pytest.raises(TypeError, match=r"in the state of odd: inner\[1\]\.callback"):
        in_directory({"odd": Odd()}).steps(5)


def test_names_do_not_depend_on_wrappers(job_type: Any, in_directory: Open) -> None:
    job = job_type()
    wrapped = torch.nn.DataParallel(job.model)
    in_directory({"model": wrapped}).checkpoint()
    session = in_directory({"model": wrapped})
    for _ in session.steps(1):
        job.model[0].weight.data.fill_(3.0)
    again = job_type()
    assert in_directory({"model": again.model}).restore() == 1
    assert float(again.model[0].weight.detach().min()) == 3.0


def test_stop_and_checkpoint_save_at_the_end_of_the_step(job_type: Any, in_directory: Open) -> None:
    job = job_type()
    session = in_directory(job.state(), every=1000)
    for step in session.steps(TOTAL):
        job.train_step()
        if step == 2:
            session.checkpoint()
        if step == 4:
            break
    assert in_directory(job_type().state()).restore() == 3
    job = job_type()
    session = in_directory(job.state(), every=1000)
    for step in session.steps(TOTAL):
        job.train_step()
        if step == 7:
            session.stop()
    assert session.step == 8
    assert in_directory(job_type().state()).restore() == 8


def test_D8_sigterm_saves_at_the_end_of_the_step_and_leaves(
    job_type: Any, in_directory: Open, expected: tuple[str, list[int]]
) -> None:
    job = job_type()
    session = in_directory(job.state(), every=1000)
    with pytest.raises(SystemExit) as left:
        for step in session.steps(TOTAL):
            if step == 6:
                os.kill(os.getpid(), signal.SIGTERM)
            job.train_step()
    assert left.value.code == EXIT_CODE
    session.close()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    job = job_type()
    session = in_directory(job.state(), every=1000)
    run_to(session, job, TOTAL)
    assert session.restored_step == 7
    assert job.fingerprint() == expected[0]


def test_D9_a_forked_child_that_inherits_the_handler_just_dies(job_type: Any, in_directory: Open) -> None:
    job = job_type()
    session = in_directory(job.state(), every=1000)
    for step in session.steps(3):
        if step == 1:
            child = os.fork()
            if child == 0:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            _, status = os.waitpid(child, 0)
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGTERM
        job.train_step()
    assert session.step == 3, "the trainer itself goes on"


def test_progress_is_in_the_cell(job_type: Any, tmp_path: Path) -> None:
    from keepstep.train.cadence import Cadence
    from keepstep.train.state import Registered
    from keepstep.train.storage import DirectoryStorage

    path = str(tmp_path / "cell")
    cell = wire.ProgressCell(path, create=True)
    worker = read_worker({"RANK": "0", "WORLD_SIZE": "1", "KEEPSTEP_PROGRESS_FILE": path, "KEEPSTEP_JOB": "j"})
    job = job_type()
    cadence = Cadence(checkpoint_s=None, checkpoint_steps=None, snapshot_steps=None, alone=True)
    session = Session(worker, Registered(job.state()), cadence, DirectoryStorage(worker, tmp_path / "c"), False)
    assert wire.claimed_by_session
    seen = []
    for step in session.steps(3):
        job.train_step()
        with session.phase("evaluate"):
            seen.append(cell.read().phase)
        session.report(loss=torch.tensor(float(step), requires_grad=True))
        seen.append(cell.read().phase)
        assert cell.read().step == (step or -1)
    reading = cell.read()
    assert seen == ["evaluate", "step"] * 3
    assert (reading.phase, reading.step, reading.loss) == ("done", 3, 2.0)
    session.close()
    cell.close()


def test_random_state_in_the_middle_of_a_buffer_is_restored() -> None:
    state = generators.capture()
    wanted = torch.rand(4)
    room = torch.cat([torch.zeros_like(state["torch"]), state["torch"]])
    generators.restore(standalone({**state, "torch": room[len(state["torch"]) :]}))
    assert torch.equal(torch.rand(4), wanted)
    assert np.random.get_state()[1].tolist() == state["numpy"]["state"]["key"].tolist()


def test_only_byte_views_are_copied_and_the_tree_is_kept() -> None:
    view, floats = torch.arange(9, dtype=torch.uint8)[1:], torch.arange(9.0)[1:]
    model = torch.nn.Linear(2, 2).state_dict()
    found = standalone({"a": [view, (view, {3: view})], "b": model, "c": floats})
    copies = [found["a"][0], found["a"][1][0], found["a"][1][1][3]]
    assert all(torch.equal(copy, view) and copy.storage_offset() == 0 for copy in copies)
    assert found["b"] is model and model._metadata and found["c"] is floats


def test_an_order_that_cannot_be_read_is_no_start_from_nothing() -> None:
    with pytest.raises(RestoreFailed, match="KEEPSTEP_RESTORE"):
        read_worker({"KEEPSTEP_RESTORE": "{"})
