"""Words that arrive wrongly: twice, late, from a closed session, of another boot. Owns what is said; the checkers judge."""

from keepstep.core import facts as f
from keepstep.core.ids import Session
from keepstep.core.resource import ResourceState
from keepstep.sim.targets import Targets


class Words(Targets):
    def probe_failed(self) -> bool:
        job = self._job()
        if job is not None:
            self._fleet.network.server.observe(f.ProbeFailed(source="status", job=job.id, detail="timed out"))
        return job is not None

    def duplicate_facts(self) -> bool:
        """The same words again, under a new number."""
        found = self._rank()
        launcher = self._launcher()
        if found is None or launcher is None:
            return False
        for fact in list(launcher.last_facts):
            launcher.report(fact)
        return True

    def stale_facts(self) -> bool:
        """Words of an older generation or of a closed session arrive late."""
        job = self._job()
        run = job.run() if job is not None else None
        if job is None or run is None or run.generation < 2:
            return False
        older = job.runs.get(run.generation - 1)
        rank = next(iter(older.ranks.values()), None) if older is not None else None
        if older is None or rank is None:
            return False
        server = self._fleet.network.server
        if server.world.jobs[job.id].generation < run.generation:
            return False
        server.stale(
            f.RankExited(
                job=job.id, node=rank.node, session=rank.session, generation=older.generation, rank=rank.rank,
                slot=rank.slot, signal=9, step=older.base,
            )
        )  # fmt: skip
        server.stale(f.StepsAdvanced(job=job.id, generation=older.generation, step=older.base + 1, ranks=1))
        server.stale(f.NodeLeft(job=job.id, node=rank.node, session=Session("nobody"), reason="late"))
        server.stale(f.Answered(intent=1, outcome=f.Fenced(generation=99, proof="killed")))
        return True

    def stale_gate(self) -> bool:
        """A gate's word of another boot, another part or an earlier run, while the resource is being validated."""
        server = self._fleet.network.server
        found = [r for r in server.world.resources.values() if r.state is ResourceState.VALIDATING]
        if not found or not server.up or server.paused:
            return False
        r = self._rng.choice(found)
        wrong = self._rng.choice(("boot", "serial", "run"))
        word = f.GateFinished(
            resource=r.id,
            serial="another" if wrong == "serial" else r.serial,
            boot_id="another" if wrong == "boot" else r.boot_id,
            firmware=r.firmware,
            passed=True,
            run=1 if wrong == "run" else 0,
        )
        server.stale(word)
        return True
