"""Orders that no launcher can carry out: witnesses, power, people, repair orders. Owns what they find, from ground truth."""

from typing import TYPE_CHECKING

from keepstep.core.facts import Answered, Done, Failed, Fenced, Outcome, Witnessed
from keepstep.core.intents import AskWitness, Fence, Notify, OpenRepair, Order, PowerOff

if TYPE_CHECKING:
    from keepstep.sim.fleet import FleetState

_DELAY_S: dict[str, tuple[float, float]] = {
    "AskWitness": (0.01, 0.5),
    "Fence": (0.01, 0.3),
    "PowerOff": (2.0, 20.0),
    "Notify": (0.0, 0.1),
    "OpenRepair": (0.1, 1.0),
}


class Witness:
    """Runs beside the server and dies with it."""

    def __init__(self, fleet: "FleetState") -> None:
        self._fleet = fleet
        self.pages: dict[str, str] = {}
        """Subject -> the newest page about it."""

    def submit(self, order: Order) -> None:
        server = self._fleet.network.server
        life, kind = server.life, type(order.intent).__name__
        delay_s = self._fleet.rng.uniform(*_DELAY_S[kind]) * self._fleet.slowness(kind)

        def act() -> None:
            if server.up and server.life == life:
                facts = self._carry_out(order)
                server.observe(*facts)

        self._fleet.timeline.after(delay_s, act)

    def _carry_out(self, order: Order) -> list[Witnessed | Answered]:
        intent, outcome = order.intent, Done()
        answer: Outcome = outcome
        seen: list[Witnessed | Answered] = []
        match intent:
            case AskWitness():
                seen.append(self._look(intent))
            case Fence():
                answer = self._fence(intent)
            case PowerOff():
                answer = self._power_off(intent)
            case Notify():
                if intent.level == "page":
                    self.pages[intent.subject] = intent.message
            case OpenRepair():
                self._fleet.probes.hit("repair ordered")
            case _:
                answer = Failed(reason="no such witness")
        return [*seen, Answered(intent=order.number, outcome=answer)]

    def _look(self, intent: AskWitness) -> Witnessed:
        machine = self._fleet.machines[intent.node]
        launcher = self._fleet.launchers.get((intent.job, intent.node))
        verdict, witness = "no_answer", "host"
        if not machine.on:
            verdict, witness = ("host_off" if machine.bmc_alive else "no_answer"), "bmc"
        elif machine.managed:
            alive = launcher is not None and launcher.alive and launcher.session == intent.session
            verdict = "rebooted" if machine.boot_id != intent.boot_id else "alive" if alive else "process_gone"
        return Witnessed(
            job=intent.job,
            node=intent.node,
            session=intent.session,
            witness="bmc" if witness == "bmc" else "host",
            verdict=verdict,  # type: ignore[arg-type]
        )

    def _fence(self, intent: Fence) -> Outcome:
        """Proof without the launcher: the machine is off, was rebooted, or the process is gone and what it left is ended."""
        machine = self._fleet.machines[intent.node]
        known = self._fleet.launchers.get((intent.job, intent.node))
        if not machine.on and machine.bmc_alive:
            return Fenced(generation=intent.generation, proof="powered_off")
        if not machine.on or not machine.managed:
            return Failed(reason="nobody can see the host")
        if known is None or known.session != intent.session or known.alive:
            same = known is not None and known.alive and known.session == intent.session
            return Failed(reason="the launcher lives" if same else "another launcher runs there now")
        if known.boot_id != machine.boot_id:
            return Fenced(generation=intent.generation, proof="rebooted")
        killed = self._fleet.kill(known, "the host ends what a dead launcher left")
        return Fenced(generation=intent.generation, proof="process_gone", killed=killed)

    def _power_off(self, intent: PowerOff) -> Outcome:
        machine = self._fleet.machines[intent.node]
        if not machine.bmc_alive:
            return Failed(reason="the BMC does not answer")
        for job in self._fleet.jobs.values():
            for rank in job.alive():
                if rank.node == machine.node:
                    self._fleet.checkers.killed(job, job.runs[rank.generation], f"power off of {machine.node}")
        self._fleet.machine_off(machine, reboot=True)
        return Fenced(generation=intent.generation, proof="powered_off")
