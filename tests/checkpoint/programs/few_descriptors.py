"""Saves and restores with hardly any file descriptors. Arguments: directory, limit, number of saves."""

import os
import resource
import sys

import numpy as np

from keepstep.checkpoint import LocalCheckpoints, flatten

limit, saves = int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
checkpoints = LocalCheckpoints(sys.argv[1], job="job")
used = []
for step in range(1, saves + 1):
    commit = checkpoints.save(step, {"model": flatten({"w": np.full(300_000, step)}), "rank": flatten({"step": step})})
    assert commit is not None and checkpoints.load(commit)["rank"]["step"] == step
    used.append(len(os.listdir("/proc/self/fd")))
assert used[-1] <= used[1], f"descriptors grow: {used}"
