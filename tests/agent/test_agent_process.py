"""A real agent process against a scripted server: what happens on the node arrives, once and in order."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.ports import lasting_port

from keepstep.core.facts import AgentJoined, Answered, CoverageChanged, Done, Failed, SignalSeen
from keepstep.core.ids import JobId, NodeId, ResourceId, Session
from keepstep.core.intents import Quarantine, Release, ResetDevice

from .driver import DEADLINE_S, Bench, environment

CARDS = """
[device.0]
names = ["gpu/0000:9b:00", "gpu/0"]
serial = "1650"
[domains]
rack = "r7"
"""
LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1234, name=python, GPU has fallen off the bus."
OTHER = "NVRM: Xid (PCI:0000:3f:00): 48, pid=77, name=python, An uncorrectable double bit error (DBE) has been detected"


def started(bench: Bench, config: str = "", sources: str = "kmsg") -> AgentJoined:
    bench.server.start()
    bench.start(config, sources)
    joined = bench.server.fact(AgentJoined)
    bench.server.fact(CoverageChanged, lambda seen: seen.state == "seen")
    return joined


def test_a_line_of_the_kernel_log_becomes_a_fact_about_the_device(bench: Bench) -> None:
    joined = started(bench, CARDS)
    bench.write(LOST)
    seen = bench.server.signal("xid.79")
    assert (seen.resource, seen.part, seen.count) == ("device/n0/0", "gpu/0000:9b:00", 1)
    assert seen.session == joined.session == bench.server.hellos[0].session
    assert seen.boot_id == joined.boot_id
    assert joined.domains == {"rack": "r7"}
    assert [(part.slot, part.serial) for part in joined.parts] == [(0, "1650")]


def test_a_card_of_no_known_slot_stands_for_its_node(bench: Bench) -> None:
    started(bench, CARDS)
    bench.write(OTHER)
    assert bench.server.signal("xid.48").resource == "node/n0"


def test_it_beats(bench: Bench) -> None:
    started(bench)
    beat = bench.server.wait("a beat", lambda: next(iter(bench.server.beats), None))
    assert (beat.generation, beat.ranks) == (0, ())
    assert beat.running_s > 0


def test_what_was_seen_without_a_server_is_told_once_and_in_order(bench: Bench) -> None:
    started(bench, CARDS)
    bench.server.acks = False
    bench.write(OTHER)
    bench.server.signal("xid.48")
    bench.server.stop()
    bench.write(LOST)
    time.sleep(1.0)
    bench.server.acks = True
    bench.server.start()
    bench.server.signal("xid.79")
    assert [seen.signal for seen in bench.server.facts(SignalSeen)] == ["xid.48", "xid.79"]
    numbers = [report.number for report in bench.server.reports]
    assert numbers == sorted(set(numbers))


def test_an_agent_that_finds_no_server_keeps_what_it_sees(bench: Bench) -> None:
    bench.start(CARDS)
    _until(lambda: b"signals are kept" in bench.output.read_bytes(), "a word about the missing server")
    _until(bench.follows, "the kernel log")
    bench.write(LOST)
    time.sleep(0.6)
    bench.server.start()
    bench.server.signal("xid.79")
    kinds = [type(report.fact) for report in bench.server.reports]
    assert kinds.index(AgentJoined) < kinds.index(SignalSeen)


def test_a_storm_is_one_signal_until_its_minute_is_over(bench: Bench) -> None:
    started(bench, CARDS)
    bench.write(*[LOST] * 5000)
    bench.server.signal("xid.79")
    bench.write(OTHER)
    bench.server.signal("xid.48")
    assert [seen.signal for seen in bench.server.facts(SignalSeen)] == ["xid.79", "xid.48"]
    assert bench.end() == 0
    assert bench.server.fact(SignalSeen, lambda one: one.count == 4999).signal == "xid.79"
    assert len(bench.server.facts(SignalSeen)) == 3


def test_a_hold_is_kept_in_a_file_until_it_is_lifted(bench: Bench) -> None:
    joined = started(bench)
    ours = {"job": JobId("j"), "node": NodeId("n0"), "session": joined.session, "resource": ResourceId("device/n0/3")}
    bench.server.order(1, Quarantine(**ours, reason="xid.79"))
    assert isinstance(bench.server.fact(Answered, lambda one: one.intent == 1).outcome, Done)
    (path,) = (bench.state / "agent" / "n0" / "holds").iterdir()
    assert json.loads(path.read_text()) == {"resource": "device/n0/3", "reason": "xid.79"}
    bench.server.order(2, Release(**ours))
    bench.server.fact(Answered, lambda one: one.intent == 2)
    assert not path.exists()


def test_an_order_that_it_does_not_know_fails_and_says_so(bench: Bench) -> None:
    started(bench)
    order = ResetDevice(job=JobId("j"), node=NodeId("n0"), session=Session("s"), resource=ResourceId("device/n0/3"))
    bench.server.order(9, order)
    outcome = bench.server.fact(Answered).outcome
    assert isinstance(outcome, Failed)
    assert "ResetDevice" in outcome.reason


def test_a_node_has_one_agent(bench: Bench) -> None:
    started(bench)
    command = [sys.executable, "-m", "keepstep.agent", "--node", "n0", "--state-dir", str(bench.state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment())
    assert done.returncode == 1
    assert "already runs" in done.stderr


def test_it_goes_on_when_its_log_is_rotated(bench: Bench) -> None:
    started(bench, CARDS)
    bench.write(OTHER)
    bench.server.signal("xid.48")
    bench.log.rename(bench.log.with_suffix(".1"))
    bench.write(LOST)
    bench.server.signal("xid.79")


def test_the_agent_loads_no_library_that_it_does_not_need() -> None:
    program = (
        "import keepstep.agent.wiring, sys; print({'numpy', 'typer', 'rich', 'torch', 'sqlite3'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=DEADLINE_S, env=environment()
    )
    assert done.stdout.strip() == "set()", done.stderr


def test_a_look_for_a_person_prints_coverage_and_leaves(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "keepstep.agent", "--once", "--json", "--for-s", "1", "--node", "n0",
        "--state-dir", str(tmp_path), "--sources", "host,dependencies",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment())
    assert done.returncode == 0, done.stderr
    view = json.loads(done.stdout)
    assert {one["source"]: one["state"] for one in view["coverage"]} == {"host": "seen", "dependencies": "absent"}
    assert view["node"] == "n0"


def test_the_command_leads_to_the_agent(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "keepstep", "agent", "--once", "--json", "--for-s", "60", "--node", "n7",
        "--state-dir", str(tmp_path), "--sources", "dependencies",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["node"] == "n7"


WRONG_WORDS = [
    (["--server", "somewhere"], "tls:host:port"),
    (["--sources", "kmsg,nvlm"], "no source 'nvlm'"),
    (["--node", "a/b"], "without '/'"),
    (["--config", "/nonexistent.toml"], "TOML file"),
]
WRONG_OPTIONS = [
    ("[source.exporter]\nurl = 5\n", "[source.exporter] url is 5; write text"),
    ('[source.smart]\nperiod_s = "a"\n', "[source.smart] period_s is 'a'; write a number"),
    ("[source.nvml]\nexpected = true\n", "[source.nvml] expected is True; write a whole number"),
    ('[dependency.x]\nkind = "tcp"\nurl = "tcp://x:99999"\n', "url is 'tcp://x:99999': port out of range"),
]
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from keepstep.agent.wiring import main
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as said:
        code = main(arguments)
    print(json.dumps([code, said.getvalue()]))
"""


def test_wrong_input_is_told_with_what_may_stand_there_and_a_wrong_option_with_its_table(tmp_path: Path) -> None:
    """An agent that cannot begin leaves at once: one process tries them all."""
    tries = [(words, said) for words, said in WRONG_WORDS]
    for number, (config, said) in enumerate(WRONG_OPTIONS):
        path = tmp_path / f"agent{number}.toml"
        path.write_text(config)
        tries.append((["--config", str(path)], said))
    asked = json.dumps([["--state-dir", str(tmp_path), *words] for words, _ in tries])
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER], input=asked, capture_output=True, text=True, timeout=DEADLINE_S,
        env=environment(), check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    for (words, said), (code, told) in zip(tries, answers, strict=True):
        assert code == 2 and said in told, (words, told)
        assert words[0] != "--config" or f"{words[1]}: " in told or not Path(words[1]).exists()


def test_a_dependency_that_goes_and_comes_is_told(bench: Bench) -> None:
    port = lasting_port()
    listener = socket.create_server(("127.0.0.1", port))
    accepting = threading.Thread(target=_accept_until_closed, args=(listener,), daemon=True)
    accepting.start()
    config = f'[dependency.registry]\nkind = "tcp"\nurl = "tcp://127.0.0.1:{port}"\nevery_s = 1\n'
    started(bench, config, sources="dependencies")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    accepting.join(DEADLINE_S)
    down = bench.server.signal("dependency.down")
    assert (down.part, down.resource) == ("dependency/registry", "node/n0")
    listener = socket.create_server(("127.0.0.1", port))
    with listener:
        bench.server.signal("dependency.ok")


def _accept_until_closed(listener: socket.socket) -> None:
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


def _until(true: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not true():
        assert time.monotonic() < deadline_s, f"waited {DEADLINE_S} s in vain for {what}"
        time.sleep(0.05)
