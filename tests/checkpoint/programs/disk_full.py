"""A save that runs out of room, then one that has room again. Arguments: directory, limit of a file's size in bytes."""

import resource
import sys

import numpy as np

from keepstep.checkpoint import LocalCheckpoints, SaveFailed, flatten

checkpoints = LocalCheckpoints(sys.argv[1], job="job")
small = {"model": flatten({"w": np.arange(100)}), "rank": flatten({"step": 1})}
large = {"rank": flatten({"step": 2}), "model": flatten({"w": np.arange(100_000)})}
assert checkpoints.save(1, small) is not None
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    checkpoints.save(2, large)
except SaveFailed as error:
    print(error)
else:
    sys.exit("a save beyond the limit did not fail")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert checkpoints.save(2, large) is not None
