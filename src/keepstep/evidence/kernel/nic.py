"""Network adapters as the kernel and the network daemons see them: firmware health, commands, queues, modules, carrier.

Owns the names of adapters and interfaces (``nic/0000:3b:00``, ``nic/ib6``) and which interfaces are not hardware. Must not
count flaps; a rule does (``core/combine/host.py``).
"""

import re
from collections.abc import Sequence

import msgspec

from keepstep.core.observation import Observation, pci_name
from keepstep.evidence.kernel.frames import Record
from keepstep.evidence.kernel.patterns import NEAR_PCI, PCI, Values, first, hints, pattern

_VIRTUAL = re.compile(
    r"(?:lo\d*|veth\w*|cali\w+|docker\d*|br-?[\w-]*|cni\w*|flannel\S*|virbr\S*|vnet\d+|tap\S*|tun\S*|dummy\d*|vxlan\S*|cilium\S*|lxc\S*"
    r"|kube-\S*|nodelocaldns|wg\d*|gre\S*|sit\d*|ip6tnl\d*|ifb\d*|macv\S*|ipvl\S*|weave\S*|azv\S*|gke\S*|eni[0-9a-f]{6,}\S*|usb\d*"
    r"|ovs-?\S*|genev\S*|tailscale\d*|podman\d*|antrea\S*|enx[0-9a-f]{12})$"
)
"""Interfaces that containers, tunnels and the BMC's USB network make: they come and go, and no training traffic uses them."""

_DAEMONS = ("systemd-networkd", "NetworkManager", "dhcpcd", "ifplugd", "wickedd", "kernel")
_IFACE = r"(?P<iface>[a-z][\w.-]{0,14}(?:@\w+)?)"


def _adapter(values: Values) -> str:
    """The adapter by address, else the interface."""
    try:
        return f"nic/{pci_name(values['pci'])}"
    except (KeyError, ValueError):
        return f"nic/{values['iface']}" if values.get("iface") else ""


def _interface(values: Values) -> str:
    """The interface, for that is what daemons and ports are called by; else the adapter."""
    return f"nic/{values['iface']}" if values.get("iface") else _adapter(values)


def _queue_owner(values: Values) -> str:
    """Newer kernels name the interface before the words, older ones after them."""
    return _interface({**values, "iface": values.get("named", values.get("iface", ""))})


def _carrier(values: Values) -> str:
    if _VIRTUAL.match(values.get("iface", "")):
        return ""
    gone = values["state"].lower() in ("down", "lost", "disconnected", "definitely down", "inactive")
    return "nic.link_down" if gone else "nic.link_up"


def _syndrome(values: Values) -> str:
    """mlx5 health syndromes: 0x10 is heat, the ones about PCI data are the bus, the rest is the adapter's own."""
    code, text = values.get("synd", ""), values.get("what", "").lower()
    if code in ("0x10",) or "high temp" in text:
        return "nic.hot"
    if code == "0x0" or "unrecognized" in text:
        return "nic.health_note"
    return "nic.firmware_error" if code in ("0x1", "0x7", "0xf") or "firmware" in text else "nic.hardware_error"


_MLX5_FATAL = (
    pattern(
        "nic.command_timeout", "Will cause a leak",
        rf"{NEAR_PCI}(?P<command>[A-Z][A-Z0-9_]{{2,40}})\((?P<opcode>0x[0-9a-f]+)\)[^\n]{{0,40}}?timeout\. Will"
        r" cause a leak", _adapter,
    ),
    pattern("nic.command_timeout", "Will cause a leak", rf"{NEAR_PCI}timeout\. Will cause a leak", _adapter),
    pattern("nic.health_compromised", "health compromised", rf"{NEAR_PCI}device's health compromised", _adapter),
    pattern("nic.firmware_error", "Fatal error", rf"{PCI}: [^\n]{{0,60}}?Fatal error (?P<code>\d+) detected", _adapter),
    pattern(
        _syndrome, "synd 0x",
        rf"{NEAR_PCI}synd (?P<synd>0x[0-9a-f]+): (?P<what>[^\n]{{3,60}})", _adapter,
    ),
    pattern(
        _syndrome, "Health issue observed",
        rf"{PCI}: [^\n]{{0,60}}?Health issue observed, (?P<what>[\w ]{{3,60}}), severity\((?P<severity>\d)\)", _adapter,
    ),
    pattern(
        "nic.recovery_failed", "mlx5",
        rf"{PCI}: [^\n]{{0,80}}?(?:health recovery failed|recovery flow (?:failed|aborted)|still not functional)",
        _adapter,
    ),
    pattern(
        "nic.recovered", "mlx5",
        rf"{PCI}: [^\n]{{0,80}}?(?:health recovery succeeded|recovery succeeded|recovered after timeout)", _adapter,
    ),
    pattern("nic.recovered", "recovered after timeout", r"recovered after timeout"),
    pattern(
        "nic.firmware_error", "mlx5",
        rf"{PCI}: [^\n]{{0,40}}?(?:health_care: handling bad device here|(?:mlx5_)?enter_error_state[^\n]{{0,30}}:"
        r" start)", _adapter,
    ),
    pattern("nic.pci_error", "mlx5", rf"{PCI}: [^\n]{{0,40}}?mlx5_pci_err_detected", _adapter),
    pattern(
        "nic.init_failed", "mlx5",
        rf"{PCI}: [^\n]{{0,60}}?(?:init_one failed with error|mlx5_load_one failed|Firmware over \d+ MS in "
        r"|mlx5_function_setup failed"
        r"|mlx5_init_one failed|Failed initializing (?:cmdif|command interface))", _adapter,
    ),
    pattern(
        "nic.init_failed", "probe of",
        rf"(?:mlx[45]_core|bnxt_en|ice|i40e|efa|irdma): probe of {PCI} failed with error", _adapter,
    ),
    pattern(
        "nic.init_failed", "probe with driver",
        rf"{PCI}: probe with driver (?:mlx[45]_core|bnxt_en|ice|i40e|efa|irdma) failed", _adapter,
    ),
)  # fmt: skip

_MLX5_WATCH = (
    pattern(
        "nic.low_power", "insufficient power",
        rf"{NEAR_PCI}Detected insufficient power on the PCIe slot[^\n]{{0,40}}?\((?P<value>\d+)W\)", _adapter,
    ),
    pattern(
        "nic.module_hot", "Port module event",
        rf"{NEAR_PCI}Port module event(?=(?:[^\n]{{0,60}}?module (?P<module>\d+))?)[^\n]*?High Temperature",
        _adapter,
    ),
    pattern(
        "nic.module_error", "Port module event[error]",
        rf"{NEAR_PCI}Port module event\[error\]: module (?P<module>\d+), (?P<what>[^\n]{{3,80}})", _adapter,
    ),
    pattern(
        "nic.module", "Port module event",
        rf"{NEAR_PCI}Port module event: module (?P<module>\d+), Cable (?P<what>(?:un)?plugged)", _adapter,
    ),
    pattern("nic.hot", "High temperature", rf"{NEAR_PCI}mlx[^\n]{{0,80}}?High temperature", _adapter),
    pattern(
        "nic.access_register", "ACCESS_REG",
        rf"{NEAR_PCI}mlx5_cmd_out_err[^\n]{{0,60}}?ACCESS_REG[^\n]{{0,40}}?failed", _adapter,
    ),
    pattern(
        "nic.access_register", "ACCESS_REG",
        rf"{NEAR_PCI}mlx5_cmd_check[^\n]{{0,60}}?ACCESS_REG[^\n]{{0,40}}?failed", _adapter,
    ),
    pattern(
        "nic.stack", "mlx5e",
        r"(?:^|RIP: [0-9a-f]{4}:|\? |[ \t])(?P<function>mlx5e_(?:poll_ico_cq|napi_poll|poll_\w+))\+0x[0-9a-f]+/",
    ),
    pattern("nic.cqe_error", "dump error cqe", r"(?P<iface>mlx5_\d{1,3})[^\n]{0,60}?dump error cqe", _interface),
)  # fmt: skip

_QUEUES = (
    pattern(
        "nic.driver_lockup", "soft lockup",
        r"(?s)soft lockup - CPU#(?P<cpu>\d+).{0,3800}?(?P<function>mlx5e?_\w+|bnxt_\w+|ice_\w+_poll|i40e_\w+)\+0x",
    ),
    pattern(
        "nic.tx_timeout", "NETDEV WATCHDOG",
        rf"(?:\S+ {PCI} (?P<named>\S+): )?NETDEV WATCHDOG: (?:(?P<iface>[\w.-]{{1,15}}) )?(?:\((?P<driver>"
        r"[\w-]+)\))?", _queue_owner,
    ),
    pattern(
        "nic.tx_timeout", "TX timeout",
        rf"(?:\S+ {PCI} {_IFACE}: )?(?:{_IFACE.replace('iface', 'other')}: )?TX timeout (?:detected|on queue)",
        _interface,
    ),
    pattern("nic.tx_timeout", "RX timeout on channel", rf"(?:\S+ {PCI} {_IFACE}: )?RX timeout on channel", _interface),
    pattern("nic.tx_timeout", "transmit timeout", rf"{_IFACE}: transmit timeout: latency \d+ msecs", _interface),
)  # fmt: skip

_OTHER_DRIVERS = (
    pattern(
        "nic.command_timeout", "mlx4_core",
        rf"mlx4_core {PCI}: (?:command 0x[0-9a-f]+ (?:timed out|failed: fw status = 0x1)|[Ii]nternal error detected"
        r"|device is going to be reset)", _adapter,
    ),
    pattern(
        "nic.command_timeout", "bnxt_en",
        rf"bnxt_en {PCI}[^\n]{{0,40}}?: (?:Error \(timeout: \d+\) msg|Resp cmpl intr err msg|hwrm \w+ timed out|FW"
        r" is unresponsive)", _adapter,
    ),
    pattern(
        "nic.firmware_error", "bnxt_en",
        rf"bnxt_en {PCI}[^\n]{{0,40}}?: (?:Firmware (?:is unresponsive|fatal|non-responsive)|FW (?:fatal error"
        r"|health|reset) [^\n]{0,40}(?:fatal|fail|abort))", _adapter,
    ),
    pattern(
        "nic.recovery_failed", "ice 0",
        rf"ice {PCI}[^\n]{{0,40}}?: (?:Rebuild failed|PF reset failed|reset failed)", _adapter,
    ),
    pattern(
        "nic.firmware_error", "ice 0",
        rf"ice {PCI}[^\n]{{0,40}}?: (?:The driver for the device has (?:stopped|detected)|Firmware recovery mode"
        r"|CORER reset)[^\n]{0,80}", _adapter,
    ),
    pattern(
        "nic.recovery_failed", "i40e",
        rf"i40e {PCI}[^\n]{{0,40}}?: (?:PF reset failed|Rebuild AdminQ failed|[^\n]{{0,30}}reset failed)", _adapter,
    ),
    pattern(
        "nic.command_timeout", "adminq",
        rf"(?:ena|efa|gve|idpf) {PCI}[^\n]{{0,40}}?: [^\n]{{0,60}}admin ?q[^\n]{{0,40}}(?:timeout|timed out|did not"
        r" complete)", _adapter,
    ),
    pattern(
        "nic.recovery_failed", "Reset attempt failed",
        rf"(?:ena|efa|gve) {PCI}[^\n]{{0,40}}?: Reset attempt failed", _adapter,
    ),
    pattern(
        "nic.tx_timeout", "Keep alive watchdog timeout",
        rf"ena {PCI}[^\n]{{0,40}}?: Keep alive watchdog timeout", _adapter,
    ),
    pattern(
        "nic.firmware_error", "irdma",
        rf"{NEAR_PCI}irdma[^\n]{{0,80}}?(?:critical error|HW error|requesting a? ?reset)", _adapter,
    ),
    pattern(
        "nic.hardware_error", "hfi1",
        rf"hfi1 {PCI}: hfi1_\d+: [^\n]{{0,60}}(?:SPC freeze|fatal|halting)", _adapter,
    ),
)  # fmt: skip

_CARRIER = (
    pattern(_carrier, "arrier", rf"(?:^|[ :]){_IFACE}: (?:C|c)arrier (?P<state>lost|acquired)$", _interface, _DAEMONS),
    pattern(_carrier, "arrier", rf"(?:^|: ){_IFACE}: (?P<state>[Ll]ost|[Gg]ained) carrier", _interface, _DAEMONS),
    pattern(
        _carrier, "carrier: link",
        rf"device \({_IFACE}\): carrier: link (?P<state>connected|disconnected)", _interface, _DAEMONS,
    ),
    pattern(
        _carrier, "link status definitely",
        rf"link status definitely (?P<state>up|down) for (?:interface )?{_IFACE}\b", _interface,
    ),
    pattern(
        _carrier, "link status definitely",
        rf"\(slave {_IFACE}\): link status definitely (?P<state>up|down)", _interface,
    ),
    pattern(
        "nic.bond_lost", "without any active interface",
        r"(?P<iface>bond[\w.-]*): (?:now )?running without any active interface", _interface,
    ),
    pattern(
        _carrier, "ink ",
        rf"\b(?!pcieport )[\w-]+ {PCI}(?: {_IFACE})?: (?:\w+: )?(?:\S+ )?(?:NIC )?[Ll]ink (?:is )?(?P<state>[Uu]p|"
        r"[Dd]own|DOWN|UP)\b", _interface,
    ),
    pattern(
        _carrier, "ink ",
        rf"^(?:\w+: )?{_IFACE}:? (?:NIC )?Link (?:is )?(?P<state>[Uu]p|[Dd]own|DOWN|UP)\b", _interface,
    ),
    pattern(
        _carrier, "mlx5",
        r"(?P<iface>mlx[45]_\d{1,3})[^\n]{0,20}?[Pp]ort:? (?P<port>\d+)[^\n]{0,20}? (?:[Ll]ink )?(?P<state>DOWN|UP"
        r"|ACTIVE|down|up|active)\b", "nic/{iface}/{port}",
    ),
)  # fmt: skip

PATTERNS = (*_MLX5_FATAL, *_MLX5_WATCH, *_QUEUES, *_OTHER_DRIVERS, *_CARRIER)

HINTS = hints(PATTERNS)


def match(record: Record) -> Sequence[Observation] | None:
    found = first(PATTERNS, record)
    return [_by(one, record) for one in found] if found else found


def _by(seen: Observation, record: Record) -> Observation:
    """Who reports a carrier: the driver, the bond and a daemon each say the same loss, and it is counted once."""
    if not seen.signal.startswith("nic.link_"):
        return seen
    by = "bonding" if "link status definitely" in record.text else record.program or "kernel"
    return msgspec.structs.replace(seen, attributes={**seen.attributes, "apart": by})
