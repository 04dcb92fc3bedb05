"""Validation tools: passed, failed and which part, or not run. Hand-written samples of each."""

import json
from pathlib import Path

import pytest

from keepstep.core.catalog import CATALOG
from keepstep.core.catalog.row import Verdict
from keepstep.evidence.document import Document
from keepstep.evidence.reading import Reading
from keepstep.evidence.recognise import read

DATA = Path(__file__).resolve().parents[4] / "shared" / "data" / "gate"


def reading(text: str | bytes) -> Reading:
    found = read(Document("sample", text if isinstance(text, bytes) else text.encode()))
    assert found is not None, "no reader knows this form"
    return found


def keys(text: str | bytes) -> list[tuple[str, str]]:
    return [(x.signal, x.part) for x in reading(text).observations]


NCCL = """# nThread 1 nGpus 1 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid 412424 on gpu-node-1 device  0 [0x18] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 412425 on gpu-node-1 device  1 [0x2a] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1    23.51    0.04    0.08      {wrong}    23.10    0.04    0.08      0
"""
END = "# Out of bounds values : {} OK\n# Avg bus bandwidth    : 232.112\n#\n"


def test_a_collective_test_passes_fails_or_does_not_end() -> None:
    passed = reading(NCCL.format(wrong=0) + END.format(0))
    assert passed.observations == []
    assert (passed.node, len(passed.fine)) == ("gpu-node-1", 1)
    assert [k for k, _ in keys(NCCL.format(wrong=17) + END.format(17))] == ["gate.comm.wrong_results"]
    assert [k for k, _ in keys(NCCL.format(wrong="N/A") + END.format(0))] == []
    assert [k for k, _ in keys(NCCL.format(wrong=0))] == ["gate.tool_failed"]


def test_a_collective_that_ends_with_an_error_is_suspected_or_names_the_device() -> None:
    error = "gpu-node-1: Test NCCL failure common.cu:958 'unhandled system error (run with NCCL_DEBUG=INFO for details) / '\n"
    assert [k for k, _ in keys(NCCL.format(wrong=0) + error)] == ["gate.comm.failed"]
    ecc = "gpu-node-1: Test CUDA failure common.cu:892 'uncorrectable ECC error encountered'\n"
    assert [k for k, _ in keys(NCCL.format(wrong=0) + ecc)] == ["gate.gpu.memory"]


def test_a_tool_that_could_not_run_is_no_fault() -> None:
    (key,) = [
        k for k, _ in keys("ERROR: this application must be run on at least 10 nodes\nmpirun detected that one\n")
    ]
    assert key == "gate.tool_failed"
    assert CATALOG.row(key).verdict is Verdict.BENIGN
    assert not CATALOG.row(key).isolate


BURN = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-555555555555)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-11111111-2222-3333-4444-666666666666)
Initialized device 0 with 81251 MB of memory
100.0%  proc'd: 22 (7150 Gflop/s) - 22 (7100 Gflop/s)   errors: 0 - {errors}   temps: 38 C - 40 C
done

Tested 2 GPUs:
\tGPU 0: OK
\tGPU 1: {verdict}
"""


def test_gpu_burn_names_the_card() -> None:
    good = reading(BURN.format(errors="0", verdict="OK"))
    assert good.observations == []
    assert [fine.part for fine in good.fine] == ["gpu/0", "gpu/1"]
    assert keys(BURN.format(errors="12 (WARNING!)", verdict="FAULTY")) == [("gate.gpu.wrong_results", "gpu/1")]
    assert keys(BURN.format(errors="-1 (DIED!)", verdict="FAULTY")) == [("gate.gpu.died", "gpu/1")]


def test_a_card_that_is_much_slower_under_load_is_suspected() -> None:
    speeds = " - ".join(f"22 ({1200 if i == 6 else 7100} Gflop/s)" for i in range(8))
    zero = " - ".join("0" for _ in range(8))
    text = f"100.0%  proc'd: {speeds}   errors: {zero}   temps: 40 C\nTested 8 GPUs:\n" + "".join(
        f"\tGPU {i}: OK\n" for i in range(8)
    )
    assert keys(text) == [("gate.gpu.slow", "gpu/6")]


def bandwidth(row: str) -> str:
    return (
        "nvbandwidth Version: v0.6\nRunning host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n"
        "           0         1         2         3         4         5         6         7\n"
        f" 0 {row}\n\nSUM host_to_device_memcpy_ce 400.00\n"
    )


def test_a_card_that_copies_far_slower_than_its_neighbours_is_suspected() -> None:
    assert keys(bandwidth("55.1 55.2 55.1 55.0 55.3 55.2 55.1 55.2")) == []
    assert keys(bandwidth("55.1 55.2 13.4 55.0 55.3 55.2 55.1 55.2")) == [("gate.gpu.pcie", "gpu/2")]
    copies = "".join(f"cpu_to_gpu{i}_by_dma_under_numa0 {6.1 if i == 3 else 26.2}\n" for i in range(8))
    assert keys(copies) == [("gate.gpu.pcie", "gpu/3")]


def test_nvbandwidth_json_with_an_error_is_not_a_pass() -> None:
    cases = [{"name": "host_to_device_memcpy_ce", "status": "Error"}]
    assert [k for k, _ in keys(json.dumps({"nvbandwidth": {"testcases": cases}}))] == ["gate.tool_failed"]


PERFTEST = """---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_4
 Number of qps   : 1\t\tTransport type : IB
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
"""


def test_perftest_names_the_adapter() -> None:
    assert keys(PERFTEST + " 65536      5000             392.12             392.01               0.747\n") == []
    failed = PERFTEST + " Completion with error at client\n Failed status 12: wr_id 0 syndrom 0x81\n"
    assert keys(failed) == [("gate.network", "nic/mlx5_4")]
    assert [k for k, _ in keys(PERFTEST + "Couldn't connect to 10.0.0.2:18515\n")] == ["gate.tool_failed"]


def test_a_benchmark_that_gave_nothing_is_to_be_run_again() -> None:
    nodes = [
        {"node": f"n{i}", "mem/a_bw:0": 25.0, "mem/b_bw:0": 25.0, "mem/return_code": int(i == 2)} for i in range(4)
    ]
    assert keys("\n".join(json.dumps(x) for x in nodes)) == [("gate.incomplete", "")]
    assert CATALOG.row("gate.incomplete").verdict is Verdict.WATCH


def test_a_rank_far_from_the_same_rank_of_other_nodes_is_suspected() -> None:
    nodes = [
        {"node": f"n{i}", "mem/H2D_Mem_BW:0": 6.0 if i == 1 else 25.0, "mem/b_bw:0": 25.0, "mem/return_code": 0}
        for i in range(4)
    ]
    found = reading("\n".join(json.dumps(x) for x in nodes))
    assert [(x.node, x.signal, x.part) for x in found.observations] == [("n1", "gate.gpu.pcie", "gpu/0")]


LABELS: dict[str, set[tuple[str, str]]] = {
    "superbench_diagnosis_summary.jsonl": {("sb-validation-01", "suspect"), ("sb-validation-03", "watch")},
    "superbench_diagnosis_summary_json.json": {("sb-validation-01", "suspect"), ("sb-validation-03", "watch")},
    "superbench_test_results.jsonl": {("sb-validation-01", "suspect"), ("sb-validation-03", "watch")},
    "superbench_gpcnet_network_load_error.log": {("", "benign")},
    **{f"superbench_{name}.log": set() for name in (
        "gpu_burn", "gpu_copy_bw_performance", "ib_loopback_all_sizes", "nccl_allreduce", "nvbandwidth_results",
    )},
}  # fmt: skip
"""(node, verdict) of all that is told."""


@pytest.mark.skipif(not DATA.exists(), reason="the collected captures are absent")
@pytest.mark.parametrize("name", sorted(LABELS))
def test_a_capture_is_judged_as_labelled(name: str) -> None:
    found = reading((DATA / name).read_bytes())
    assert {(x.node, CATALOG.row(x.signal).verdict.value) for x in found.observations} == LABELS[name]
    assert bool(found.fine) or bool(found.observations)
