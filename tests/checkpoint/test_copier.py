"""Further tiers behind the snapshot server (D4): made by themselves, read and repaired from where the own store fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keepstep.checkpoint.errors import StoreUnfit
from keepstep.checkpoint.opening import open_tier
from keepstep.checkpoint.repository.copies import ErasureCopies, StoreCopies
from keepstep.checkpoint.repository.tiers import from_copies
from keepstep.checkpoint.snapshot.messages import Committed, Notice, Ok

from .states import check, groups

LOCATIONS = ",".join(f"rack{number}={{root}}/l{number}" for number in range(6))


@pytest.mark.parametrize(
    "text", ["2+1@0:" + ",".join(LOCATIONS.split(",")[:3]), "{root}/copy@0"], ids=["spread", "plain"]
)
def test_checkpoints_are_copied_and_repaired(
    text: str, tmp_path: Path, start_node: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    tier = text.format(root=tmp_path)
    node = start_node(options=("--copies", tier))
    node.begin(1, 1)
    client = node.client(0, 1)
    for step in (1, 2):
        client.snapshot(step, groups(step, size=200_000), durable=True)
        key = node.event(Committed, step).key
    copies = open_tier(tier).copies
    eventually(
        lambda: (found := from_copies(copies, "job")[0]) is not None and found.commit.step == 2, "a copy of step 2"
    )
    packs = sorted((tmp_path / "checkpoints" / "steps").glob("00000002-*/*.pack"))
    for pack in packs:
        pack.unlink()
    assert isinstance(node.verify_disk(key), Ok), "it was not repaired from its copies"
    assert packs and all(pack.exists() for pack in packs)
    assert "repaired steps/00000002" in node.event(Notice, 2).reason


def test_a_restore_reads_from_copies_where_the_own_store_fails(
    tmp_path: Path, start_node: Callable[..., Any], eventually: Callable[..., Any]
) -> None:
    tier = f"{tmp_path}/copy@0"
    node = start_node(options=("--copies", tier))
    node.begin(1, 1)
    node.client(0, 1).snapshot(1, groups(1, size=200_000), durable=True)
    key = node.event(Committed, 1).key
    eventually(lambda: from_copies(open_tier(tier).copies, "job")[0] is not None, "a copy")
    node.close()
    for pack in (tmp_path / "checkpoints" / "steps").glob("*/*.pack"):
        pack.write_bytes(bytes(pack.stat().st_size))
    other = start_node(options=("--copies", tier))
    other.begin(2, 1)
    restored = other.client(0, 1, generation=2).restore(1, "disk", key, 1)
    check(restored, 1, size=200_000)
    assert "was read from" in other.event(Notice, 1).reason


def test_tiers_as_people_write_them(tmp_path: Path) -> None:
    spread = open_tier("4+2@3600:" + LOCATIONS.format(root=tmp_path))
    assert isinstance(spread.copies, ErasureCopies) and spread.every_s == 3600
    plain = open_tier(f"{tmp_path}/x@y@1.5")
    assert isinstance(plain.copies, StoreCopies) and plain.every_s == 1.5
    with pytest.raises(StoreUnfit, match="domain"):
        open_tier("4+2@60:a=/x,a=/y,a=/z,b=/v,b=/w,b=/u")
    for wrong in ("s3://bucket", "4+2@60:/a,/b", "", "@5"):
        with pytest.raises(ValueError, match="tier"):
            open_tier(wrong)
