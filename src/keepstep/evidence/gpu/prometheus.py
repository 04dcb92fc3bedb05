"""The text form of Prometheus metrics: samples with labels. Owns the form; knows no metric."""

import re
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from keepstep.evidence.document import Document

MAX_LABELS = 64
_HEAD_LINES = 400
_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:.]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d{1,20}(?:\.\d{1,9})?))?\s*(?:#.*)?$")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_.]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_NAME_IN_JSON = re.compile(r'"__name__"\s*:\s*"([A-Za-z_:][A-Za-z0-9_:]{0,120})"')
_ESCAPED = re.compile(r"\\(.)")
_NODE_LABELS = (
    "Hostname",
    "hostname",
    "exported_hostname",
    "node",
    "nodename",
    "node_name",
    "kubernetes_node",
    "host",
    "instance",
)


class Sample(Struct, frozen=True):
    name: str
    labels: dict[str, str]
    value: float
    line: int
    at_s: float | None = None

    @property
    def node(self) -> str:
        """The host that the labels name, without a port."""
        for name in _NODE_LABELS:
            text = self.labels.get(name, "")
            host = text.rsplit(":", 1)[0] if name == "instance" and text.rsplit(":", 1)[-1].isdecimal() else text
            if host and host not in ("localhost", "127.0.0.1", "0.0.0.0"):
                return host
        return ""


def samples(document: Document) -> Iterator[Sample]:
    """Every sample that can be read; comments and torn lines are passed over. An answer of the query interface is one too."""
    if document.json is not None:
        yield from _answered(document.json)
        return
    for number, text in document.lines():
        found = sample(text, number)
        if found is not None:
            yield found


def sample(text: str, number: int) -> Sample | None:
    if not text or text[0] == "#":
        return None
    match = _SAMPLE.match(text)
    if match is None:
        return None
    try:
        value = float(match[3])
    except ValueError:
        return None
    labels: dict[str, str] = {}
    for label in _LABEL.finditer(match[2] or ""):
        labels[label[1]] = _ESCAPED.sub(r"\1", label[2]) if "\\" in label[2] else label[2]
        if len(labels) >= MAX_LABELS:
            break
    return Sample(match[1], labels, value, number, _time_s(match[4]) if match[4] else None)


def _time_s(text: str) -> float:
    """The older form counts milliseconds, the newer one seconds."""
    value = float(text)
    return value / 1000.0 if "." not in text and value > 1e11 else value


def _answered(tree: Any) -> Iterator[Sample]:
    """``{"data": {"result": [{"metric": {…}, "value": [time, "text"]}]}}``; of a range, its newest value."""
    data = tree.get("data") if isinstance(tree, dict) else None
    results = data.get("result") if isinstance(data, dict) else None
    for entry in results if isinstance(results, list) else ():
        labels = entry.get("metric") if isinstance(entry, dict) else None
        pair = (entry.get("value") or (entry.get("values") or [None])[-1]) if isinstance(labels, dict) else None
        if not isinstance(labels, dict) or not isinstance(pair, list) or len(pair) != 2:
            continue
        try:
            at_s, value = float(pair[0]), float(pair[1])
        except (TypeError, ValueError):
            continue
        texts = {str(key): str(text)[:500] for key, text in list(labels.items())[:MAX_LABELS]}
        yield Sample(texts.pop("__name__", ""), texts, value, 0, at_s)


def names_in(text: str) -> set[str]:
    """Names of the metrics at the beginning of a document."""
    found = set()
    if text.lstrip()[:1] == "{":
        return set(_NAME_IN_JSON.findall(text))
    for line in text.splitlines()[:_HEAD_LINES]:
        one = sample(line, 0)
        if one is not None:
            found.add(one.name)
        elif line.startswith(("# TYPE ", "# HELP ")) and len(line.split(" ", 3)) > 2:
            found.add(line.split(" ", 3)[2])
    return found
