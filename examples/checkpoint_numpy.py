"""Checkpoints of plain numpy arrays: no torch, no jax, no server. Run it again and it goes on where it was.

python examples/checkpoint_numpy.py --steps 20
"""

import argparse

import numpy as np

from keepstep.checkpoint import LocalCheckpoints, SaveFailed, flatten


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--directory", default="checkpoints/numpy")
    arguments = parser.parse_args()
    checkpoints = LocalCheckpoints(arguments.directory, job="numpy", keep=2)

    weights, generator, begin = np.zeros((64, 8)), np.random.default_rng(0), 0
    if (commit := checkpoints.newest_valid()) is not None:
        state = checkpoints.load(commit)
        weights, begin = state["model"]["weights"], commit.step
        generator.bit_generator.state = state["rng"]
        print(f"resumed from step {begin}")

    for step in range(begin + 1, arguments.steps + 1):
        weights += 0.1 * (generator.standard_normal(weights.shape) - weights)
        if step % 5 == 0:
            groups = {"model": flatten({"weights": weights}), "rng": flatten(generator.bit_generator.state)}
            try:
                checkpoints.save(step, groups)
            except SaveFailed as error:
                print(f"step {step} was not saved, going on: {error}")
    print(f"step {arguments.steps}: sum {weights.sum():.12f}")


if __name__ == "__main__":
    main()
