"""A small tree with a NaN, by Orbax's own checkpointer. Arguments: directory, ocdbt or zarr."""

import sys

import jax.numpy as jnp
import orbax.checkpoint as ocp

handler = ocp.PyTreeCheckpointHandler(use_ocdbt=sys.argv[2] == "ocdbt")
with ocp.Checkpointer(handler) as checkpointer:
    checkpointer.save(sys.argv[1], args=ocp.args.PyTreeSave({"w": jnp.array([1.0, jnp.nan])}))
