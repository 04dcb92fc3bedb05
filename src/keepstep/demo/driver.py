"""Runs the job and injects the faults, one after another. Owns the order of the show; the view is told, the proof judges.

Everything happens in one thread: whoever waits, waits in ``Driver.wait_for``, which looks at the job and shows it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from keepstep.core.incident import Incident
from keepstep.core.job import TERMINAL
from keepstep.demo.faults import Done, Fault
from keepstep.demo.plan import GAP_STEPS, START_STEPS, DemoPlan
from keepstep.demo.processes import Front, end_server, kill_at_once, left_behind, server_process, wait_gone
from keepstep.demo.watch import Watch

LOOK_S = 0.05
PATIENCE_S = 240.0
"""Nothing in a demo takes so long; whatever is waited for has not happened then, and will not."""


class DemoFailed(RuntimeError):
    """The show cannot go on; the message says what was waited for and where to look."""


@dataclass
class Act:
    """One fault of the show, as far as it has come."""

    fault: Fault
    state: str = "waiting"
    """``waiting``, ``injecting``, ``recovering``, ``recovered``."""
    done: Done | None = None
    step: int = -1
    """Where the job was."""
    begun_s: float = 0.0
    """Seconds since the epoch."""
    faults_before: int = 0
    incident: Incident | None = None


class Audience(Protocol):
    """Whoever shows it: a live view or lines. Called often; must be quick."""

    def say(self, text: str) -> None: ...

    def show(self, watch: Watch, acts: list[Act]) -> None: ...


class Driver:
    """One faulted run. ``run`` returns the exit code of ``keepstep run``; ``close`` leaves no process behind."""

    def __init__(self, plan: DemoPlan, faults: tuple[Fault, ...], audience: Audience) -> None:
        self.plan = plan
        self.watch = Watch(plan)
        self.acts = [Act(fault) for fault in faults]
        self._audience = audience
        self._front: Front | None = None

    def run(self) -> int:
        """Raises DemoFailed."""
        self.restore_power()
        self._audience.say(f"keepstep run: job {self.plan.job}, 4 ranks on 2 virtual nodes, {self.plan.spares} spare")
        due = START_STEPS
        for number, act in enumerate(self.acts, start=1):
            self.wait_for(lambda due=due: self._at(due), f"step {due}")  # type: ignore[misc]
            self._play(number, act)
            due = self.watch.step + GAP_STEPS
        self._audience.say(f"no more faults: the job runs to its last step, {self.plan.steps}")
        front = self._front
        assert front is not None
        self.wait_for(lambda: front.exit_code is not None, "the end of the job", ends=True)
        assert front.exit_code is not None
        return front.exit_code

    def close(self) -> None:
        if self._front is not None:
            self._front.close()
        end_server(self.plan.state)
        self.watch.read_journal()
        self.watch.close()

    def _at(self, step: int) -> bool:
        return self.watch.settled and self.watch.step >= step

    def _play(self, number: int, act: Act) -> None:
        act.step, act.begun_s, act.faults_before = self.watch.step, time.time(), len(self.watch.faults())
        act.state = "injecting"
        self._audience.say(f"fault {number} of {len(self.acts)}: {act.fault.title} ({act.fault.name})")
        act.done = act.fault.inject(self)
        self._audience.say(f"injected: {act.done.text}")
        act.state = "recovering"
        self.wait_for(lambda: self._recovered(act), f"the recovery from {act.fault.name}")
        incident = act.incident
        assert incident is not None
        act.state = "recovered"
        self._audience.say(
            f"recovered after {incident.downtime_s:.2f} s, {incident.lost_steps} steps lost: {incident.verdict}"
        )

    def _recovered(self, act: Act) -> bool:
        faults = self.watch.faults()[act.faults_before :]
        if not faults:
            return False
        act.incident = faults[-1]
        return all(not incident.open for incident in faults) and self.watch.settled

    # ---- faults.Stage

    def wait_for(
        self, condition: Callable[[], bool], what: str, *, every_s: float = LOOK_S, ends: bool = False
    ) -> None:
        """Look and show until ``condition`` holds. ``ends``: the end of the job is what is waited for.

        Raises DemoFailed where the job ends before that, or after PATIENCE_S without it.
        """
        deadline = time.monotonic() + PATIENCE_S + (self.plan.steps if ends else 0)
        while not condition():
            if time.monotonic() > deadline:
                raise DemoFailed(f"{what} did not come within {PATIENCE_S:.0f} s; see {self.plan.log}")
            if not ends and (why := self._ended()):
                raise DemoFailed(f"{why} before {what}; see {self.plan.log}, or give the job more --steps")
            time.sleep(every_s)
            # Whoever looks every other millisecond wants to hit a moment: the journal alone is quick enough for it.
            if every_s < LOOK_S:
                self.watch.read_journal()
            else:
                self.watch.poll()
            self._audience.show(self.watch, self.acts)

    def _ended(self) -> str:
        job = self.watch.job
        if job is not None and job.state in TERMINAL:
            return f"the job ended ({job.message})"
        code = self._front.exit_code if self._front is not None else None
        return f"keepstep run ended with code {code}" if code is not None else ""

    def cut_power(self) -> None:
        victims = left_behind(self.plan)
        server = server_process(self.plan.state)
        if server is not None and server not in victims:
            victims.append(server)
        assert self._front is not None
        kill_at_once(victims)
        self._front.kill()
        self._front.close()
        if not wait_gone(victims):
            raise DemoFailed(f"processes of {self.plan.job} outlived SIGKILL: {[victim.pid for victim in victims]}")

    def restore_power(self) -> None:
        self._front = Front(self.plan.command(), self.plan.log, self.plan.order)
