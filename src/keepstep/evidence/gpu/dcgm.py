"""Device metrics in Prometheus text: dcgm-exporter of both naming generations, gpud, nvidia_gpu_exporter, AMD's exporter."""

from keepstep.core.observation import Observation
from keepstep.evidence.document import Document
from keepstep.evidence.gpu.card import Card, Said, pci_or_empty
from keepstep.evidence.gpu.judge import report
from keepstep.evidence.gpu.metric_names import CLOCK_EVENTS, FABRIC_STATES, METRICS, PREFIXES, THROTTLE_BITS
from keepstep.evidence.gpu.peers import compare
from keepstep.evidence.gpu.prometheus import Sample, names_in, samples
from keepstep.evidence.reading import Reader, Reading

MAX_CARDS = 100_000
_UUID_LABELS = ("UUID", "uuid", "gpu_uuid", "GPU_UUID", "secondary_name")
_INDEX_LABELS = ("gpu", "gpu_id", "GPU", "index", "minor_number")
_PCI_LABELS = ("pci_bus_id", "PCI_BUS_ID", "pcie_bus_id", "bus_id")
_BOARDS = (4, 8, 16)
_XIDS_TOTAL = "accelerator_nvidia_xid_errors_total"
_Key = tuple[str, str]


class _Fleet:
    """Cards by node and device, as the labels tell them apart."""

    def __init__(self, reading: Reading) -> None:
        self.cards: dict[_Key, Card] = {}
        self.numbers: dict[str, dict[int, bool]] = {}
        """Node -> numbers of devices that have series, of themselves or of slices."""
        self.reading = reading

    def card(self, sample: Sample) -> Card | None:
        labels = sample.labels
        uuid = next((labels[name] for name in _UUID_LABELS if labels.get(name, "").startswith(("GPU-", "MIG-"))), "")
        index = next((labels[name] for name in _INDEX_LABELS if labels.get(name, "").isdecimal()), "")
        pci = pci_or_empty(next((labels[name] for name in _PCI_LABELS if labels.get(name)), ""))
        if not index and labels.get("device", "").startswith("nvidia") and labels["device"][6:].isdecimal():
            index = labels["device"][6:]
        if index and len(index) < 4:
            self.numbers.setdefault(sample.node, {})[int(index)] = True
        whole = uuid or pci or index
        slice_id = labels.get("GPU_I_ID", "")
        if not whole or (len(self.cards) >= MAX_CARDS and (sample.node, whole) not in self.cards):
            return None
        key = (sample.node, f"{whole}/mig{slice_id}" if slice_id else whole)
        card = self.cards.get(key)
        if card is None:
            card = self.cards[key] = _new(sample, uuid, index, pci, slice_id)
        card.pci = card.pci or ("" if slice_id else pci)
        return card


def _new(sample: Sample, uuid: str, index: str, pci: str, slice_id: str) -> Card:
    card = Card(uuid=uuid, index=index[:4], pci=pci, node=sample.node, line=sample.line)
    if slice_id:
        parent = card.part
        card = Card(
            uuid=f"{parent.partition('/')[2]}/mig{slice_id[:8]}", parent=parent, node=sample.node, line=sample.line
        )
    for label in ("modelName", "model", "card_model", "gpu_model"):
        card.say("name", sample.labels.get(label, ""), 0)
    card.say("serial", sample.labels.get("serial_number", ""), 0)
    return card


def read(document: Document) -> Reading:
    return read_cards(document)[0]


def read_cards(document: Document) -> tuple[Reading, list[Card]]:
    """Also the cards themselves, for whoever keeps their counters."""
    reading = Reading(reader="dcgm", file=document.path)
    fleet = _Fleet(reading)
    for sample in samples(document):
        if sample.name.startswith(PREFIXES) or sample.name in METRICS:
            reading.records += 1
            _tell(fleet, sample)
    cards = list(fleet.cards.values())
    nodes = {card.node for card in cards} - {""}
    reading.node = nodes.pop() if len(nodes) == 1 else ""
    for card in cards:
        report(card, reading)
    compare([card for card in cards if not card.parent], reading)
    _vanished(fleet.numbers, reading)
    return reading, cards


def _tell(fleet: _Fleet, sample: Sample) -> None:
    name = METRICS.get(sample.name)
    if name is None and not sample.name.startswith("DCGM_") and sample.name != _XIDS_TOTAL:
        return
    if "nvswitch" in sample.labels:
        return
    card = fleet.card(sample)
    if card is None or sample.value != sample.value:
        return
    text = f"{sample.value:.15g}"
    if name is None:
        _derived(fleet, card, sample)
    elif name == "throttle":
        mask = int(sample.value) if 0 <= sample.value < 1 << 32 else 0
        for bit, reason in THROTTLE_BITS.items():
            card.say(reason, "1" if mask & bit else "0", sample.line)
    elif name == "fabric.state":
        state = FABRIC_STATES.get(int(sample.value) if 0 <= sample.value < 16 else 0, "")
        card.say("fabric.state", "completed" if state == "failed" else state, sample.line)
        if state == "failed":
            card.say("fabric.status", "failed", sample.line)
    elif name == "fabric.summary":
        card.say("fabric.unhealthy", "1" if sample.value in (2, 3) else "0", sample.line)
    elif name == "healthy":
        card.facts["healthy"] = Said(text, sample.line)
    else:
        card.say(name, text, sample.line)


def _derived(fleet: _Fleet, card: Card, sample: Sample) -> None:
    """What the exporter itself has counted over its window."""
    if sample.name == "DCGM_EXP_CLOCK_EVENTS_COUNT":
        reason = CLOCK_EVENTS.get(sample.labels.get("clock_event", ""))
        if reason is not None:
            card.say(reason, "1" if sample.value > 0 else "0", sample.line)
    elif sample.name == "DCGM_EXP_XID_ERRORS_COUNT":
        code = sample.labels.get("xid", "")
        if sample.value > 0 and code.isdecimal() and 0 < int(code[:5]) < 1000:
            _add(fleet.reading, card, f"xid.{int(code)}", f"Xid {code} counted {sample.value:g} times", sample)
    elif sample.name == _XIDS_TOTAL and sample.value > 0:
        # Counted since the agent started: history, not an event.
        card.say("xid.last", sample.labels.get("xid", ""), sample.line)
    elif sample.name == "DCGM_EXP_GPU_HEALTH_STATUS":
        _health(fleet.reading, card, sample)


def _health(reading: Reading, card: Card, sample: Sample) -> None:
    watch = sample.labels.get("health_watch", "").upper()
    # The power watch is active on most busy machines: a power limit that is held is ordinary.
    if sample.value < 10 or watch == "POWER":
        return
    signal = (
        "gpu.diag.warning"
        if sample.value < 20
        else ("gpu.diag.memory" if watch in ("MEM", "MEMORY") else "gpu.diag.failed")
    )
    _add(reading, card, signal, f"health watch {watch or '?'}: {sample.value:g}", sample)


def _add(reading: Reading, card: Card, signal: str, detail: str, sample: Sample) -> None:
    reading.observations.append(
        Observation(
            signal=signal, node=card.node, part=card.part, detail=detail, source=reading.reader, file=reading.file,
            line=sample.line, count=max(1, int(min(sample.value, 1e6))) if signal.startswith("xid.") else 1,
        )
    )  # fmt: skip


def _vanished(by_node: dict[str, dict[int, bool]], reading: Reading) -> None:
    """A device that is lost has no series any more: a hole in a node's numbers is the only sign of it."""
    for node, numbers in sorted(by_node.items()):
        holes = sorted(set(range(max(numbers))) - set(numbers))
        # More holes than one are a choice of devices; one in a whole board is a device that is gone.
        if len(holes) == 1 and len(numbers) + 1 in _BOARDS:
            number = holes[0]
            reading.observations.append(
                Observation(
                    signal="gpu.dead", node=node, part=f"gpu/{number}", source=reading.reader, file=reading.file,
                    detail=f"no series of device {number}; its {len(numbers)} siblings have some",
                )
            )  # fmt: skip


def _recognise(document: Document) -> float:
    names = names_in(document.head)
    known = sum(name in METRICS or name.startswith(("DCGM_FI_", "DCGM_EXP_", "accelerator_nvidia_")) for name in names)
    return 0.85 if known >= 2 else 0.7 if known else 0.0


READER = Reader(name="dcgm", text="device metrics: dcgm-exporter, gpud and the like", recognise=_recognise, read=read)
