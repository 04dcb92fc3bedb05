"""OTLP/HTTP export with one thread and a bounded queue. Owns the sending; never blocks whoever hands over.

Endpoint, headers, certificates and time-outs are those of the standard variables (``OTEL_EXPORTER_OTLP_…``), which the
exporters read themselves. Whether anything is sent at all says ``switches``.
"""

import logging
import queue
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from keepstep import __version__
from keepstep.adapters.otel.translate import metrics_data, readable_span
from keepstep.telemetry import Family, Span

try:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.metrics.export import MetricExportResult
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExportResult
except ImportError as error:
    raise ImportError("OpenTelemetry needs the extra: pip install 'keepstep[otel]'") from error

log = logging.getLogger("keepstep.otel")

QUEUE_MAX = 64
"""Recoveries and rounds of figures that wait; each is small."""
SPANS_AT_ONCE = 512


class OtlpExport:
    """``traces`` and ``metrics`` say what is sent at all."""

    def __init__(self, identity: str, *, traces: bool, metrics: bool) -> None:
        self._resource = _resource({"service.instance.id": identity, "service.version": __version__})
        self._spans = OTLPSpanExporter() if traces else None
        self._metrics = OTLPMetricExporter() if metrics else None
        self._started_s: float | None = None
        self._queue: queue.Queue[tuple[Sequence[Span], Sequence[Family], float] | None] = queue.Queue(QUEUE_MAX)
        self._failing = False
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="otlp", daemon=True)
        self._thread.start()

    def spans(self, spans: Sequence[Span]) -> bool:
        """Returns at once; False where they were dropped, because the queue is full of what did not get through."""
        return self._spans is None or self._put((spans, (), 0.0))

    def metrics(self, families: Sequence[Family], now_s: float) -> bool:
        return self._metrics is None or self._put(((), families, now_s))

    def _put(self, item: tuple[Sequence[Span], Sequence[Family], float]) -> bool:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            return False
        return True

    def stop(self, within_s: float) -> None:
        """What is queued is still sent, for so long; then the rest is given up."""
        try:
            self._queue.put(None, timeout=within_s)
            self._thread.join(within_s)
        except queue.Full:
            pass  # nothing gets through
        self._ends.set()
        for exporter in (self._spans, self._metrics):
            if exporter is not None:
                exporter.shutdown()  # ends its waiting for another try, too

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._ends.is_set():
                return
            spans, families, at_s = item
            if spans and self._spans is not None:
                self._told(self._send_spans(self._spans, spans))
            if families and self._metrics is not None:
                self._started_s = self._started_s if self._started_s is not None else at_s
                data = metrics_data(families, self._resource, self._started_s, at_s)
                self._told(self._metrics.export(data) is MetricExportResult.SUCCESS)

    def _send_spans(self, exporter: OTLPSpanExporter, spans: Sequence[Span]) -> bool:
        made = [readable_span(span, self._resource) for span in spans]
        return all(exporter.export(part) is SpanExportResult.SUCCESS for part in _parts(made, SPANS_AT_ONCE))

    def _told(self, success: bool) -> None:
        if not success and not self._failing:  # said once, not with every round
            log.warning("the OTLP endpoint does not take what is sent; what does not fit the queue is dropped")
        self._failing = not success


def _resource(attributes: Mapping[str, str]) -> Resource:
    """With what OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say; called ``keepstep`` where they do not name it."""
    made = Resource.create(dict(attributes))
    if str(made.attributes.get("service.name", "")).startswith("unknown_service"):
        return made.merge(Resource({"service.name": "keepstep"}))
    return made


def _parts(items: Sequence[Any], size: int) -> Iterable[Sequence[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
