"""The run that nothing happens to: same script, same options, as many ranks. Owns its process; its result is the measure."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from keepstep.demo.driver import PATIENCE_S, DemoFailed
from keepstep.demo.losses import Final, Loss, finals, losses
from keepstep.demo.plan import DemoPlan
from keepstep.demo.processes import Front, end_server

LOOK_S = 0.2


@dataclass(frozen=True)
class Reference:
    losses: list[Loss]
    finals: list[Final]


def run_reference(plan: DemoPlan, progress: Callable[[int], None]) -> Reference:
    """``plan``: the reference's own. ``progress`` is told the newest step. Raises DemoFailed."""
    plan.out.mkdir(parents=True, exist_ok=True)
    front = Front(plan.reference_command(), plan.log, plan.order)
    try:
        newest, moved_s = 0, time.monotonic()
        while front.exit_code is None:
            time.sleep(LOOK_S)
            step = max((loss.step for loss in losses(plan.rank_logs)), default=0)
            if step > newest:
                newest, moved_s = step, time.monotonic()
                progress(step)
            if time.monotonic() - moved_s > PATIENCE_S:
                raise DemoFailed(f"the reference run stands still at step {newest}; see {plan.log}")
        if front.exit_code != 0:
            raise DemoFailed(f"the reference run ended with code {front.exit_code}; see {plan.log}")
    finally:
        front.close()
        end_server(plan.state)
    return Reference(losses(plan.rank_logs), finals(plan.final))
