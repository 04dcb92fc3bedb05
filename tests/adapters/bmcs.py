"""Management controllers to test against: a small Redfish service whose answers a test writes, the emulator of sushy-tools, and
``ipmi_sim``. Each is a real server on a port of this machine."""

import contextlib
import hashlib
import http.server
import json
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

import pytest
from tests.ports import lasting_port

from keepstep.adapters.ipmi import IpmiBmc
from keepstep.ports import Bmc, BmcReading

START_S = 90.0
USER, PASSWORD = "admin", "secret"
_IPMITOOL = ("ipmitool", "-I", "lanplus", "-C", "3", "-U", USER, "-P", PASSWORD)


class Service:
    """A Redfish service that answers what ``answers`` says: a body, raw bytes, or a status. Counts what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, object] = {}
        self.asked: list[str] = []
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                self.reply(service.answers.get(self.path.rstrip("/") or "/", 404))

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.reply(service.answers.get(f"POST {self.path.rstrip('/')}", 404))

            def reply(self, answer: object) -> None:
                status = answer if isinstance(answer, int) else 200
                body = (
                    answer
                    if isinstance(answer, bytes)
                    else b"{}"
                    if isinstance(answer, int)
                    else json.dumps(answer).encode()
                )
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


ROOT = "/redfish/v1"


def resource(kind: str, path: str, **more: object) -> dict[str, object]:
    return {
        "@odata.id": f"{ROOT}/{path}",
        "@odata.type": f"#{kind}.v1_0_0.{kind}",
        "Id": path[-1:],
        "Name": path,
        **more,
    }


def link(path: str) -> dict[str, str]:
    return {"@odata.id": f"{ROOT}/{path}"}


def members(path: str, *paths: str) -> dict[str, object]:
    return {
        "@odata.id": f"{ROOT}/{path}",
        "@odata.type": "#List.List",
        "Name": path,
        "Members": [link(one) for one in paths],
    }


OK = {"Health": "OK", "State": "Enabled"}


def tree(service: Service, entries: list[dict[str, object]], date: str = "2024-05-01T10:05:00Z") -> None:
    """A server with one system, one supply, one drive and one event log."""
    reset = "Systems/1/Actions/ComputerSystem.Reset"
    able = {"target": f"{ROOT}/{reset}", "ResetType@Redfish.AllowableValues": ["On", "ForceOff", "ForceRestart"]}
    log = "Systems/1/LogServices/EventLog"
    supply = {"MemberId": "0", "Name": "PSU1", "Status": dict(OK)}
    bodies = {
        "": resource(
            "ServiceRoot", "", RedfishVersion="1.9.0", Systems=link("Systems"), Chassis=link("Chassis"),
            Managers=link("Managers"), Links={"Sessions": link("SessionService/Sessions")},
        ),
        "Systems": members("Systems", "Systems/1"),
        "Systems/1": resource(
            "ComputerSystem", "Systems/1", PowerState="On", Status=dict(OK), BootProgress={"LastState": "OSRunning"},
            LogServices=link("Systems/1/LogServices"), Storage=link("Systems/1/Storage"), Memory=link("Systems/1/Memory"),
            Actions={"#ComputerSystem.Reset": able},
        ),
        "Systems/1/Storage": members("Systems/1/Storage", "Systems/1/Storage/1"),
        "Systems/1/Storage/1": resource("Storage", "Systems/1/Storage/1", Drives=[link("Systems/1/Storage/1/Drives/3")]),
        "Systems/1/Storage/1/Drives/3": resource("Drive", "Systems/1/Storage/1/Drives/3", Status=dict(OK)),
        "Systems/1/LogServices": members("Systems/1/LogServices", log),
        log: {**resource("LogService", log, Entries=link(f"{log}/Entries")), "Id": "EventLog"},
        f"{log}/Entries": {**members(f"{log}/Entries"), "Members": entries},
        "Managers": members("Managers", "Managers/1"),
        "Managers/1": resource("Manager", "Managers/1", DateTime=date),
        "Chassis": members("Chassis", "Chassis/1"),
        "Chassis/1": resource("Chassis", "Chassis/1", Power=link("Chassis/1/Power"), Status=dict(OK)),
        "Chassis/1/Power": resource("Power", "Chassis/1/Power", PowerSupplies=[supply]),
    }  # fmt: skip
    service.answers = {f"{ROOT}/{path}".rstrip("/"): body for path, body in bodies.items()}
    service.answers[f"POST {ROOT}/{reset}"] = {}


@contextlib.contextmanager
def emulator(folder: Path) -> Iterator[tuple[str, str]]:
    """(address, fingerprint) of the Redfish emulator of sushy-tools: one system, a self-signed certificate, one user."""
    pytest.importorskip("sushy_tools", reason="the emulator of sushy-tools is not installed")
    bcrypt = pytest.importorskip("bcrypt", reason="bcrypt is needed for the emulator's password file")
    program = Path(sys.executable).with_name("sushy-emulator")
    openssl = shutil.which("openssl")
    if not program.exists() or openssl is None:
        pytest.skip("sushy-emulator or openssl is not here")
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "bmc.key", "-out", "bmc.crt", "-days", "2",
         "-subj", "/CN=bmc"], cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
    (folder / "htpasswd").write_text(f"{USER}:{hashed}\n")
    (folder / "state").mkdir()
    certificate = ssl.PEM_cert_to_DER_cert((folder / "bmc.crt").read_text())
    port = lasting_port()
    _configure_emulator(folder, port)
    with (folder / "emulator.log").open("wb") as output:
        process = subprocess.Popen(
            [program, "--config", folder / "emulator.conf", "--fake"], stdout=output, stderr=subprocess.STDOUT
        )
        try:
            _wait_for_port(port, folder / "emulator.log")
            yield f"https://127.0.0.1:{port}", hashlib.sha256(certificate).hexdigest()
        finally:
            process.terminate()
            process.wait(60)


def _configure_emulator(folder: Path, port: int) -> None:
    (folder / "emulator.conf").write_text(
        f"""SUSHY_EMULATOR_LISTEN_IP = '127.0.0.1'
SUSHY_EMULATOR_LISTEN_PORT = {port}
SUSHY_EMULATOR_FAKE_DRIVER = True
SUSHY_EMULATOR_FEATURE_SET = 'full'
SUSHY_EMULATOR_STATE_DIR = {str(folder / "state")!r}
SUSHY_EMULATOR_AUTH_FILE = {str(folder / "htpasswd")!r}
SUSHY_EMULATOR_SSL_CERT = {str(folder / "bmc.crt")!r}
SUSHY_EMULATOR_SSL_KEY = {str(folder / "bmc.key")!r}
SUSHY_EMULATOR_FAKE_SYSTEMS = [
    {{'uuid': '00000000-0000-4000-8000-000000000001', 'name': 'n1', 'power_state': 'On', 'nics': []}}]
"""
    )


@contextlib.contextmanager
def simulator(folder: Path) -> Iterator[str]:
    """``host:port`` of an IPMI controller whose node is the file ``on`` in the folder."""
    program = shutil.which("ipmi_sim")
    if program is None or shutil.which("ipmitool") is None:
        pytest.skip("ipmi_sim (package openipmi) or ipmitool is not installed")
    _configure_simulator(folder)
    with (folder / "simulator.log").open("wb") as output:
        for _ in range(5):  # somebody else may have asked for the port meanwhile: then it ends at once
            port = lasting_port()
            process = _start_simulator(program, folder, port, output)
            try:
                if _answers_ipmi(port, process, folder / "simulator.log"):
                    yield f"127.0.0.1:{port}"
                    return
            finally:
                process.kill()
                process.wait(60)
    pytest.fail(f"ipmi_sim ends at once:\n{(folder / 'simulator.log').read_text(errors='replace')[-2000:]}")


def _configure_simulator(folder: Path) -> None:
    chassis = folder / "chassis.sh"
    chassis.write_text(
        f"""#!/bin/sh
shift; op=$1; shift
while [ $# -gt 0 ]; do
  case $op in
    get) case $1 in power) [ -f {folder}/on ] && echo power:1 || echo power:0;;
           boot) echo boot:default;; *) exit 1;; esac; shift;;
    set) case $1 in power) [ "$2" = 0 ] && rm -f {folder}/on || touch {folder}/on;; reset) touch {folder}/on;;
           shutdown) rm -f {folder}/on;; esac; shift 2;;
    check) shift;;
    *) exit 1;;
  esac
done
"""
    )
    chassis.chmod(0o755)
    (folder / "on").touch()
    (folder / "state").mkdir()
    (folder / "commands.emu").write_text(
        "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\n"
        "sel_enable 0x20 1000 0x0a\nmc_enable 0x20\n"
    )


def _start_simulator(program: str, folder: Path, port: int, output: IO[bytes]) -> "subprocess.Popen[bytes]":
    (folder / "lan.conf").write_text(
        f"""name "bmc"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
    lan_config_program "/bin/true"
  endlan
  chassis_control "{folder / "chassis.sh"} 0x20"
  user 1 true "" "test" user 10 none md2 md5 straight
  user 2 true "{USER}" "{PASSWORD}" admin 10 none md2 md5 straight
"""
    )
    return subprocess.Popen(
        [program, "-c", folder / "lan.conf", "-f", folder / "commands.emu", "-s", folder / "state", "-n"],
        stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
    )  # fmt: skip


def reached(bmc: Bmc, cursor: Mapping[str, str]) -> BmcReading:
    """A look that was answered, all of it over IPMI: the controller is a process of this machine, which may be busy."""
    deadline = time.monotonic() + START_S
    while True:
        reading = bmc.look(cursor)
        answered = reading.reachable and not (reading.detail and isinstance(bmc, IpmiBmc))
        if answered or time.monotonic() > deadline:
            return reading


def add_record(address: str, event: tuple[int, int, int]) -> None:
    """Put a record into the event log of the simulator: (sensor type, number, offset)."""
    host, _, port = address.partition(":")
    kind, number, offset = (hex(value) for value in event)
    raw = [
        "0x0a",
        "0x44",
        "0",
        "0",
        "2",
        "0x10",
        "0x20",
        "0x30",
        "0x60",
        "0x20",
        "0",
        "4",
        kind,
        number,
        "0x6f",
        offset,
        "0xff",
        "0xff",
    ]
    subprocess.run(
        [*_IPMITOOL, "-N", "20", "-H", host, "-p", port, "raw", *raw], check=True, capture_output=True, timeout=150,
    )  # fmt: skip


def _wait_for_port(port: int, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1.0):
            return
        time.sleep(0.1)
    pytest.fail(f"no answer on port {port} within {START_S:.0f} s:\n{log.read_text(errors='replace')[-2000:]}")


def _answers_ipmi(port: int, process: "subprocess.Popen[bytes]", log: Path) -> bool:
    """False where the simulator has ended."""
    deadline = time.monotonic() + START_S
    asking = [*_IPMITOOL, "-R", "1", "-N", "1", "-H", "127.0.0.1", "-p", str(port), "chassis", "power", "status"]
    while time.monotonic() < deadline:
        if subprocess.run(asking, capture_output=True, timeout=150).returncode == 0:
            return True
        if process.poll() is not None:
            return False
        time.sleep(0.2)
    pytest.fail(f"ipmi_sim does not answer within {START_S:.0f} s:\n{log.read_text(errors='replace')[-2000:]}")
