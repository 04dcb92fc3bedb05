"""The validation gate of a virtual CPU device: a short test with a known answer. Owns the test and its verdict.

A test that errs or does not end says nothing: that is no pass (``passed=None``, case D23).
"""

import argparse
import asyncio
import hashlib
import os
import sys

from keepstep.adapters.local import procfs
from keepstep.core.facts import GateFinished
from keepstep.core.ids import NodeId, ResourceId, node_of, slot_of
from keepstep.launcher import virtual_device
from keepstep.launcher.process import die_with_parent
from keepstep.launcher.settings import Settings

DEADLINE_S = 60.0
_SIZE = 96
_PATTERN_BYTES = 4 << 20
_FAILED = 3
_PRODUCT_MODULUS = 65521


async def run(settings: Settings, resource: ResourceId, number: int) -> GateFinished:
    """Tests one device, or every device of the node, in a process that is ended at the deadline.

    ``number`` is that of the order.
    """
    slot = slot_of(resource)
    slots = [slot] if slot is not None else list(range(settings.nproc_per_node))
    verdicts = [await _test(settings, node_of(resource), one) for one in slots]
    unknown = next((detail for passed, detail in verdicts if passed is None), None)
    failed = next((detail for passed, detail in verdicts if passed is False), None)
    tested = virtual_device.device(settings.node, slots[0])
    return GateFinished(
        resource=resource,
        serial=tested.serial if slot is not None else settings.node,
        boot_id=procfs.boot_id(),
        firmware=tested.firmware if slot is not None else "",
        passed=False if failed is not None else None if unknown is not None else True,
        detail=failed or unknown or f"product and memory pattern are right on {len(slots)} virtual devices",
        run=number,
    )


async def _test(settings: Settings, node: NodeId, slot: int) -> tuple[bool | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "keepstep.launcher.gate", "--state-dir", settings.state_dir, "--node", node,
        "--slot", str(slot), "--parent", str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE_S):
            text, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        return None, f"the gate of slot {slot} did not end within {DEADLINE_S:.0f} s"
    said = text.decode("utf-8", "replace").strip()[-500:]
    if process.returncode == 0:
        return True, said
    if process.returncode == _FAILED:
        return False, said
    return None, f"the gate of slot {slot} ended with {process.returncode}: {said}"


def check_product() -> bool:
    """A matrix product in whole numbers against its row sums: exact, and the same on every machine."""
    import numpy as np

    left = (np.arange(_SIZE * _SIZE, dtype=np.int64).reshape(_SIZE, _SIZE) * 31) % _PRODUCT_MODULUS
    right = (np.arange(_SIZE * _SIZE, dtype=np.int64).reshape(_SIZE, _SIZE) * 17 + 5) % _PRODUCT_MODULUS
    product = left.astype(np.float64) @ right.astype(np.float64)
    return bool(np.array_equal(product.sum(axis=1), (left @ right.sum(axis=1)).astype(np.float64)))


def check_memory() -> bool:
    """A pattern written, read back and inverted."""
    block = hashlib.shake_256(b"keepstep gate").digest(1 << 16)
    memory = bytearray(block * (_PATTERN_BYTES // len(block)))
    written = hashlib.blake2b(memory).digest()
    inverted = bytearray(memory.translate(bytes(255 - value for value in range(256))))
    restored = inverted.translate(bytes(255 - value for value in range(256)))
    return hashlib.blake2b(restored).digest() == written and inverted != memory


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m keepstep.launcher.gate")
    parser.add_argument("--state-dir", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--slot", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    options = parser.parse_args()
    die_with_parent(options.parent)
    fault = virtual_device.read_fault(options.state_dir, options.node, options.slot)
    if fault is not None and fault.fails_gate:
        print(f"slot {options.slot}: {fault.message}")
        return _FAILED
    for check in (check_product, check_memory):
        if not check():
            print(f"slot {options.slot}: {check.__name__} gave a wrong result")
            return _FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
