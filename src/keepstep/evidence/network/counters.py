"""Counters of ports: how wide each is, what saturation and wrapping mean, what a level and what a change says. Pure.

A level has no beginning: it only counts where a share of the traffic can be told, or where it is absurd. Changes over a known
time are held against ``LIMITS`` by who measures them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from keepstep.core.observation import Observation

if TYPE_CHECKING:
    from keepstep.evidence.network.port import Origin

WIDTH_BITS: dict[str, int] = {
    "symbol_error": 16, "link_error_recovery": 8, "link_downed": 8, "port_rcv_errors": 16,
    "port_rcv_remote_physical_errors": 16, "port_rcv_switch_relay_errors": 16, "port_xmit_discards": 16,
    "port_xmit_constraint_errors": 8, "port_rcv_constraint_errors": 8, "local_link_integrity_errors": 4,
    "excessive_buffer_overrun_errors": 4, "VL15_dropped": 16, "port_xmit_wait": 32,
}  # fmt: skip
"""As the management datagram carries them: these stop at their maximum instead of wrapping."""

NAMES: dict[str, str] = {
    "symbolerrorcounter": "symbol_error", "linkerrorrecoverycounter": "link_error_recovery",
    "linkdownedcounter": "link_downed", "portrcverrors": "port_rcv_errors",
    "portrcvremotephysicalerrors": "port_rcv_remote_physical_errors",
    "portrcvswitchrelayerrors": "port_rcv_switch_relay_errors", "portxmitdiscards": "port_xmit_discards",
    "portxmitconstrainterrors": "port_xmit_constraint_errors", "portrcvconstrainterrors": "port_rcv_constraint_errors",
    "locallinkintegrityerrors": "local_link_integrity_errors",
    "excessivebufferoverrunerrors": "excessive_buffer_overrun_errors", "vl15dropped": "VL15_dropped",
    "portxmitwait": "port_xmit_wait", "portxmitdata": "port_xmit_data", "portrcvdata": "port_rcv_data",
    "portxmitpkts": "port_xmit_packets", "portrcvpkts": "port_rcv_packets",
    "symbolerrors": "symbol_error", "linkrecovers": "link_error_recovery", "linkdowned": "link_downed",
    "rcverrors": "port_rcv_errors", "xmtdiscards": "port_xmit_discards", "xmtwait": "port_xmit_wait",
    "linkintegrityerrors": "local_link_integrity_errors", "excbufoverrunerrors": "excessive_buffer_overrun_errors",
    "xmtdata": "port_xmit_data", "rcvdata": "port_rcv_data", "xmtpkts": "port_xmit_packets",
    "rcvpkts": "port_rcv_packets", "rcvremotephyserrors": "port_rcv_remote_physical_errors",
    "rcvswrelayerrors": "port_rcv_switch_relay_errors", "xmtconstrainterrors": "port_xmit_constraint_errors",
    "rcvconstrainterrors": "port_rcv_constraint_errors",
}  # fmt: skip
"""How the tools spell them (two generations), in lower case → how the kernel does."""

BENIGN = ("port.saturated", "port.unused", "port.disabled")
MAX_SHARE_DAMAGED = 1e-6
MAX_SHARE_DISCARDED = 1e-3


def saturated(name: str, value: int) -> bool:
    """Whether a counter stands at its maximum. One that is beyond the width that is usual for it is a wider one."""
    bits = WIDTH_BITS.get(name)
    return bits is not None and value == (1 << bits) - 1


def judge_levels(part: str, values: Mapping[str, int], line: int, origin: "Origin") -> list[Observation]:
    """What counters of unknown age say."""
    told = []
    full = [name for name, value in values.items() if saturated(name, value) and name != "port_xmit_wait"]
    if full:
        detail = f"at their maximum, so blind: {', '.join(f'{name} {values[name]}' for name in sorted(full))}"
        told.append(origin.seen("port.saturated", part, detail, line, counters=",".join(sorted(full))))
    live = {name: value for name, value in values.items() if name not in full}
    received, sent = values.get("port_rcv_packets", 0), values.get("port_xmit_packets", 0)
    damaged = live.get("port_rcv_errors", 0)
    if damaged > 100 and received and damaged > received * MAX_SHARE_DAMAGED:
        told.append(origin.seen("port.receive_errors", part, f"{damaged} of {received} packets damaged", line))
    dropped = live.get("port_xmit_discards", 0)
    if dropped > 1000 and sent and dropped > sent * MAX_SHARE_DISCARDED:
        told.append(origin.seen("port.discards", part, f"{dropped} of {sent} packets dropped", line))
    symbols = live.get("symbol_error", 0)
    if symbols > 10_000:
        told.append(
            origin.seen("port.symbol_errors.level", part, f"{symbols} symbol errors since an unknown time", line)
        )
    return told


class Limit(Struct, frozen=True, kw_only=True):
    """What is too much of a counter: ``count`` within ``window_s``."""

    signal: str
    count: int
    window_s: float


LIMITS: dict[str, Limit] = {
    "link_downed": Limit(signal="port.flaps", count=3, window_s=3 * 3600),
    "carrier_down_count": Limit(signal="port.flaps", count=3, window_s=3 * 3600),
    "symbol_error": Limit(signal="port.symbol_errors", count=121, window_s=3600),
    "link_error_recovery": Limit(signal="port.recovery", count=6, window_s=60),
    "local_link_integrity_errors": Limit(signal="port.integrity", count=1, window_s=60),
    "excessive_buffer_overrun_errors": Limit(signal="port.integrity", count=1, window_s=60),
    "port_rcv_errors": Limit(signal="port.receive_errors", count=600, window_s=60),
    "port_xmit_discards": Limit(signal="port.discards", count=6000, window_s=60),
    "rnr_nak_retry_err": Limit(signal="port.transport", count=1, window_s=60),
    "req_transport_retries_exceeded": Limit(signal="port.transport", count=1, window_s=60),
    "local_ack_timeout_err": Limit(signal="port.retransmits", count=60, window_s=60),
    "roce_slow_restart": Limit(signal="port.retransmits", count=600, window_s=60),
}
"""For changes that the agent measures itself. The counts are those of the field and of the specification."""


def wrapped_increase(before: int, after: int, bits: int) -> int:
    """How much a counter that wraps at ``bits`` grew: a fall from its upper half into its lower half is a wrap, another
    fall is a reset."""
    if after >= before:
        return after - before
    top = 1 << bits
    if before < top and before >= top // 2 and after < top // 2:
        return top - before + after
    return after
