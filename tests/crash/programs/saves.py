"""The library under faults: save, commit, verify, expire, restore, through LocalCheckpoints."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from tests.crash.scenario import Tell

from keepstep.checkpoint import CheckpointError, LocalCheckpoints, SaveFailed, Superseded, flatten

KEEP = 2
_LARGE_BYTES = 1_100_000
"""More than what is read past the page cache, and than what ranks share."""


class Saves:
    """One rank, saves that each expire an older one, then a restore."""

    clean: Any = None
    world_size = 1
    before: tuple[int, ...] = (1, 2, 3)
    tried: tuple[int, ...] = (4, 5)
    recovered = 6
    restarted = 7
    """By the next generation, which begins while this one is still there."""
    later: tuple[int, ...] = (20, 21, 22)

    def state(self, step: int, rank: int) -> dict[str, Any]:
        """The same for every process."""
        return {
            "model": {"w": np.random.default_rng(step).standard_normal(700), "step": step},
            "rank": {"rng": np.arange(step, step + 5 + rank), "rank": rank},
        }

    def checkpoints(self, root: Path, run: str) -> LocalCheckpoints:
        return LocalCheckpoints(root, job="job", run=run, keep=KEEP)

    def ranks(self, root: Path, run: str) -> list[LocalCheckpoints]:
        """What each rank has."""
        return [self.checkpoints(root, run) for _ in range(self.world_size)]

    def save(self, ranks: list[LocalCheckpoints], step: int, generation: int = 0) -> bool:
        """All ranks, one after the other. True if the last one was told that it is committed."""
        commit = None
        for rank, checkpoints in enumerate(ranks):
            groups = {name: flatten(tree) for name, tree in self.state(step, rank).items()}
            commit = checkpoints.save(step, groups, rank, self.world_size, generation)
        assert commit is None or commit.step == step, commit
        return commit is not None

    def restore(self, checkpoints: LocalCheckpoints) -> int | None:
        """The step of the newest, which is bit-exact, or None."""
        commit = checkpoints.newest_valid()
        if commit is None:
            return None
        self.load(checkpoints, commit)
        step: int = commit.step
        return step

    def load(self, checkpoints: LocalCheckpoints, commit: Any) -> None:
        for rank in range(self.world_size):
            loaded = checkpoints.load(commit, rank)
            wanted = self.state(commit.step, rank)
            assert loaded.keys() == wanted.keys(), f"groups {sorted(loaded)} of step {commit.step}"
            for name, tree in wanted.items():
                for leaf, value in tree.items():
                    got = loaded[name][leaf]
                    same = got.tobytes() == value.tobytes() if isinstance(value, np.ndarray) else got == value
                    assert same, f"WRONG BYTES: {name}/{leaf} of rank {rank} in step {commit.step}"

    # ---- the scenario

    def prepare(self, root: Path) -> None:
        for step in self.before:
            assert self.save(self.ranks(root, "first"), step)

    def run(self, root: Path, tell: Tell) -> None:
        ranks = self.ranks(root, "broken")
        for step in self.tried:
            tell(f"tries {step}")
            try:
                told = self.save(ranks, step)
            except SaveFailed as error:
                tell(f"refused {step}: {error}")
            except Superseded as error:
                tell(f"superseded: {error}")
            else:
                tell(f"committed {step}" if told else f"not yet {step}")
        self.try_to_restore(ranks[0], tell)

    def try_to_restore(self, checkpoints: LocalCheckpoints, tell: Tell) -> None:
        """Or refuse."""
        try:
            tell(f"restored {self.restore(checkpoints)}")
        except (CheckpointError, OSError) as error:
            tell(f"nothing restored: {error}")

    def recover(self, root: Path, tell: Tell) -> None:
        ranks = self.ranks(root, "broken")
        tell(f"tries {self.recovered}")
        assert self.save(ranks, self.recovered), "a save after the fault is not committed"
        tell(f"committed {self.recovered}")
        assert self.restore(ranks[0]) == self.recovered

    def resume(self, root: Path, tell: Tell) -> None:
        restored = self.restore(self.checkpoints(root, "next"))
        if restored is not None:
            tell(f"committed {restored}")
        self.recover(root, tell)

    def meanwhile(self, root: Path, tell: Tell) -> None:
        ranks = self.ranks(root, "restarted")
        restored = self.restore(ranks[0])
        if restored is not None:
            tell(f"committed {restored}")
        tell(f"tries {self.restarted}")
        assert self.save(ranks, self.restarted, generation=1)
        tell(f"committed {self.restarted}")

    def check(self, root: Path, told: list[str]) -> None:
        promised = [*self.before, *(int(line.split()[1]) for line in told if line.startswith("committed"))]
        tried = {int(line.split()[1]) for line in told if line.startswith("tries")}
        checkpoints = self.checkpoints(root, "check")
        newest = self.restore(checkpoints)
        assert not checkpoints.skipped, f"a commit cannot be used: {checkpoints.skipped}"
        there = checkpoints.repository.commits()
        steps = [commit.step for commit in there]
        assert steps == sorted(steps, reverse=True), f"{steps}: an older generation has committed after a newer one"
        if any(line.startswith("superseded") for line in told):
            assert self.restarted in tried, f"superseded by nobody: {told}"
        assert newest == (steps[0] if steps else None), (newest, steps)
        assert set(steps) <= tried | set(self.before), f"{steps} are there, and only {sorted(tried)} were tried"
        if promised:
            assert max(promised) in steps, f"step {max(promised)} was committed, and {steps} are there"
        assert len(steps) >= min(KEEP, len(set(promised))), f"only {steps} are left of {promised}"
        for commit in there:
            checkpoints.repository.verify(commit.key)
            self.load(checkpoints, commit)

    def afterwards(self, root: Path) -> None:
        for step in self.later:
            assert self.save(self.ranks(root, "after"), step, generation=2), f"the save of step {step} is not committed"
            assert self.restore(self.checkpoints(root, "reader")) == step

    def footprint(self, root: Path) -> Any:
        """Files by place and kind. The log only grows: how long it is depends on how often was tried."""
        files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
        kinds = Counter(f"{path.parts[0]}/*{path.suffix}" if path.parts[1:] else path.name for path in files)
        return {kind: number for kind, number in sorted(kinds.items()) if kind != "commits/*.json"}


class Ranks(Saves):
    """Two ranks that share a large group; each may be the one that goes on."""

    world_size = 2
    before = (1, 2)
    tried = (4,)
    later = (20, 21)

    def state(self, step: int, rank: int) -> dict[str, Any]:
        large = np.random.default_rng(step).bytes(_LARGE_BYTES)
        return {"model": {"w": np.frombuffer(large, np.uint8)}, "rank": {"rank": rank, "step": step}}

    def resume(self, root: Path, tell: Tell) -> None:
        """The other rank of the same save ends its part, and may be told that both are committed."""
        [step] = self.tried
        groups = {name: flatten(tree) for name, tree in self.state(step, 1).items()}
        tell(f"tries {step}")
        try:
            commit = self.checkpoints(root, "broken").save(step, groups, 1, self.world_size)
        except SaveFailed as error:
            tell(f"refused {step}: {error}")
        else:
            tell("not yet" if commit is None else f"committed {step}")
        super().resume(root, tell)


class Pair(Ranks):
    """One rank of two; the other one saves its part meanwhile. Both may commit."""

    def part(self, root: Path, tell: Tell, rank: int) -> None:
        [step] = self.tried
        groups = {name: flatten(tree) for name, tree in self.state(step, rank).items()}
        tell(f"tries {step}")
        commit = self.checkpoints(root, "broken").save(step, groups, rank, self.world_size)
        tell("not yet" if commit is None else f"committed {step}")

    def run(self, root: Path, tell: Tell) -> None:
        self.part(root, tell, 0)

    def meanwhile(self, root: Path, tell: Tell) -> None:
        self.part(root, tell, 1)


class Reader(Saves):
    """A restore while a newer generation saves, and expires what is being read."""

    restarted = 8

    def run(self, root: Path, tell: Tell) -> None:
        self.try_to_restore(self.checkpoints(root, "reader"), tell)

    def meanwhile(self, root: Path, tell: Tell) -> None:
        tell(f"tries {self.restarted - 1}")
        assert self.save(self.ranks(root, "restarted"), self.restarted - 1, generation=1)
        super().meanwhile(root, tell)


class First(Saves):
    """The very first save of all: the directory is not there."""

    before = ()
    tried = (4,)

    def checkpoints(self, root: Path, run: str) -> LocalCheckpoints:
        return super().checkpoints(root / "run" / "checkpoints", run)

    def footprint(self, root: Path) -> Any:
        return super().footprint(root / "run" / "checkpoints")
