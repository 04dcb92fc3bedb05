"""Two real ranks under DDP: weights are saved once, random generators of each, and both go on bit-exactly."""

import json
from collections.abc import Callable

import pytest
from tests.checkpoint.libraries import Runs

from keepstep.checkpoint.repository.repository import Repository
from keepstep.checkpoint.stores.posix import PosixStore


@pytest.mark.parametrize("library", ["lightning", "transformers"])
def test_megatron_6858_every_rank_gets_its_own_random_numbers_back(
    library: str, runs_of: Callable[[str], Runs]
) -> None:
    runs = runs_of(library)
    said = [[json.loads(line) for line in rank.splitlines() if line.startswith('{"last"')] for rank in runs.ranks]
    for whole, resumed in said:
        assert whole["last"] == "None"
        assert resumed["last"] != "None"
        assert resumed["digest"] == whole["digest"] == said[0][0]["digest"]
        assert resumed["drawn"] == whole["drawn"]
    assert said[0][0]["drawn"] != said[1][0]["drawn"]
    saved = Repository(PosixStore(runs.two_ranks / "store"), "run").commits()
    assert saved[0].world_size == (1 if library == "lightning" else 2)
