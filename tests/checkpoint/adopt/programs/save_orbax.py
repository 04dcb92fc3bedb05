"""Steps 9 and 10 of a small tree, by Orbax's own manager."""

import sys

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

tree = {
    "params": {"w": jnp.arange(12.0).reshape(3, 4), "b": jnp.ones(3, jnp.bfloat16)},
    "opt_state": [jnp.ones(2), np.arange(3)],
    "step": 7,
}
handler = ocp.PyTreeCheckpointHandler(use_ocdbt=sys.argv[2] == "ocdbt")
with ocp.CheckpointManager(sys.argv[1], item_handlers={"state": handler}) as manager:
    for step in (9, 10):
        manager.save(step, args=ocp.args.Composite(state=ocp.args.PyTreeSave(tree)))
    manager.wait_until_finished()
