"""The policy of a demo: on a machine that does other things too, a process that is held up for seconds is no fault of the job.

Every fault of the show is seen at once, by an end, a broken connection or a stopped process: none of them waits for these.
"""

import time

from keepstep.adapters.database.opening import open_journal
from keepstep.core.facts import PolicySet
from keepstep.server.state_dir import StateDir

OVERRIDES = """
[hang]
step_floor_s = 60
[silence]
lease_s = 30
[orders.timeout_s]
Fence = 60
CollectStacks = 30
AskWitness = 30
"""


def be_patient(state: StateDir) -> None:
    """Before the first server of a state directory reads its journal."""
    journal = open_journal(state.journal)
    try:
        journal.append(time.time(), [PolicySet(overrides=OVERRIDES, by="the demo")])
    finally:
        journal.close()
