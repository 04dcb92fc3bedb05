"""Localisation of hangs: pure, over states and stacks made by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from keepstep.core.hangs import (
    GroupState,
    RankState,
    Stack,
    in_collective,
    localise,
    members,
    odd_one_out,
    packed,
    ranges,
    unpacked,
)


def group(name: str, ranks: tuple[int, ...], entered: int, done: int, peer: int = -1) -> GroupState:
    waits = done + 1 if entered > done else -1
    return GroupState(
        name=name,
        ranks=ranks,
        enqueued=entered,
        completed=done,
        waits_at=waits,
        op="all_reduce" * (waits >= 0),
        peer=peer,
    )


def world(late: int, count: int = 8) -> list[RankState]:
    """Tensor groups of two, one data group: ``late`` never came to its tensor group."""
    states = []
    for rank in range(count):
        pair = (rank - rank % 2, rank - rank % 2 + 1)
        mate = rank != late and late in pair
        tensor = group(f"t{pair[0]}", pair, 10 if mate or late not in pair else 9, 9 if late in pair else 10)
        states.append(RankState(rank=rank, groups=(tensor, group("d", tuple(range(count)), 5 - (late in pair), 4))))
    return states


@given(st.integers(0, 7), st.permutations(range(8)))
@settings(max_examples=40, deadline=None)
def test_the_rank_that_came_nowhere_is_named_whatever_the_order(late: int, order: list[int]) -> None:
    states = world(late)
    hang = localise([states[at] for at in order])
    assert hang is not None
    assert [suspect.rank for suspect in hang.suspects] == [late]


def test_a_rank_that_is_late_because_it_waits_for_another_is_a_victim() -> None:
    """Rank 1 did not come to the data group, but only because rank 0 did not come to theirs."""
    hang = localise(world(0))
    assert hang is not None
    assert 1 in hang.waiting


def test_a_rank_that_never_saw_the_end_of_what_its_peers_finished_is_named() -> None:
    ranks = (0, 1, 2)
    states = [RankState(rank=r, groups=(group("0", ranks, 9, 7 if r else 5),)) for r in ranks]
    hang = localise(states)
    assert hang is not None
    assert [(s.rank, s.how) for s in hang.suspects] == [(0, "not_finished")]


def test_where_all_entered_nobody_is_named() -> None:
    states = [RankState(rank=r, groups=(group("0", (0, 1), 9, 8),)) for r in range(2)]
    hang = localise(states)
    assert hang is not None
    assert hang.suspects == ()


def test_no_states_are_no_hang() -> None:
    assert localise([]) is None


def test_who_called_something_else_at_the_same_place_differs() -> None:
    ranks = (0, 1, 2)
    ops = {0: "all_reduce", 1: "broadcast", 2: "all_reduce"}
    states = [
        RankState(rank=r, groups=(GroupState(name="0", ranks=ranks, enqueued=4, completed=3, waits_at=4, op=ops[r]),))
        for r in ranks
    ]
    hang = localise(states)
    assert hang is not None
    assert [(s.rank, s.how) for s in hang.suspects] == [(1, "differs")]


def test_where_only_receives_are_open_the_idle_peer_is_named() -> None:
    waits = [RankState(rank=r, groups=(GroupState(name="p", ranks=(0, 1, 2), peer=r + 1),)) for r in range(2)]
    hang = localise([*waits, RankState(rank=2, groups=(GroupState(name="p", ranks=(0, 1, 2)),))])
    assert hang is None or [s.rank for s in hang.suspects] == [2]


@given(st.lists(st.integers(0, 2000), max_size=30, unique=True).map(sorted))
@settings(max_examples=60, deadline=None)
def test_a_packed_state_is_unpacked_as_it_was(ranks: list[int]) -> None:
    assert members(ranges(ranks)) == tuple(ranks)
    state = RankState(
        rank=3, groups=(group("a|b", tuple(ranks), 7, 3).__class__(name="n", ranks=tuple(ranks), op="x"),)
    )
    assert unpacked(packed(state)) == state


_REDUCE = ("all_reduce (torch/distributed/distributed_c10d.py)", "step (train.py)", "main (train.py)")
_LOADS = ("get (queue.py)", "_try_get_data (torch/utils/data/dataloader.py)", "step (train.py)", "main (train.py)")


def test_the_process_outside_of_the_collective_stands_out() -> None:
    stacks = [Stack(name=str(at), frames=_REDUCE) for at in range(7)] + [Stack(name="odd", frames=_LOADS)]
    odd = odd_one_out(stacks)
    assert [o.name for o in odd] == ["odd"]
    assert odd[0].frame == "get (queue.py)"


def test_a_process_that_could_not_be_read_stands_out_and_says_so() -> None:
    stacks = [Stack(name=str(at), frames=_REDUCE) for at in range(7)] + [Stack(name="blind", error="timed out")]
    assert "could not be read" in odd_one_out(stacks)[0].why


def test_where_all_stand_at_one_place_or_half_do_nobody_stands_out() -> None:
    assert odd_one_out([Stack(name=str(at), frames=_REDUCE) for at in range(8)]) == []
    assert odd_one_out([Stack(name=str(at), frames=_LOADS) for at in range(8)]) == []
    halves = [Stack(name=str(at), frames=_LOADS if at % 2 else _REDUCE) for at in range(8)]
    assert odd_one_out(halves) == []


def test_waiting_for_a_worker_of_ones_own_is_no_collective() -> None:
    assert not in_collective(Stack(name="x", frames=("recv (multiprocessing/connection.py)", "get (queue.py)")))
    assert in_collective(Stack(name="x", frames=_REDUCE))
