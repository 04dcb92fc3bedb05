"""Our spans and families as the SDK's records. Pure; owns names: ``hw_status`` is ``hw.status``, ours stay as they are."""

from collections.abc import Sequence

try:
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        Metric,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext, TraceFlags
    from opentelemetry.trace.status import Status, StatusCode
except ImportError as error:
    raise ImportError("OpenTelemetry needs the extra: pip install 'keepstep[otel]'") from error

from keepstep import __version__
from keepstep.telemetry import Buckets, Family, Labels, Span

SCOPE = InstrumentationScope("keepstep", __version__)
SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def readable_span(span: Span, resource: Resource) -> ReadableSpan:
    """The span with the ids and the times that it has, not those of now."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace, span.id),
        parent=_context(span.trace, span.parent) if span.parent else None,
        resource=resource,
        attributes=span.attributes,
        events=[Event(event.name, dict(event.attributes), _ns(event.at_s)) for event in span.events],
        links=[Link(_context(trace, id)) for trace, id in span.links],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.OK),
        start_time=_ns(span.start_s),
        end_time=_ns(span.end_s),
        instrumentation_scope=SCOPE,
    )


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=SAMPLED)


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)


def metrics_data(families: Sequence[Family], resource: Resource, since_s: float, at_s: float) -> MetricsData:
    """All families with a series, cumulated since ``since_s``."""
    metrics = [_metric(family, _ns(since_s), _ns(at_s)) for family in families if family.samples]
    scope = ScopeMetrics(scope=SCOPE, metrics=metrics, schema_url="")
    return MetricsData([ResourceMetrics(resource=resource, scope_metrics=[scope], schema_url="")])


def _metric(family: Family, since_ns: int, at_ns: int) -> Metric:
    name = family.name.replace("_", ".", 1) if family.name.startswith("hw_") else family.name
    names = tuple(label.replace("_", ".", 1) if family.name.startswith("hw_") else label for label in family.labels)
    if family.kind == "histogram":
        points = [_histogram(names, labels, value, since_ns, at_ns) for labels, value in family.samples]
        return Metric(name, family.help, "s", Histogram(points, AggregationTemporality.CUMULATIVE))
    numbers = [
        NumberDataPoint(dict(zip(names, labels, strict=True)), since_ns, at_ns, float(value))
        for labels, value in family.samples
        if not isinstance(value, Buckets)
    ]
    if family.kind == "counter":
        return Metric(name, family.help, "", Sum(numbers, AggregationTemporality.CUMULATIVE, is_monotonic=True))
    return Metric(name, family.help, "", Gauge(numbers))


def _histogram(
    names: Labels, labels: Labels, value: float | Buckets, since_ns: int, at_ns: int
) -> HistogramDataPoint:  # fmt: skip
    assert isinstance(value, Buckets), "a histogram's samples are buckets"
    return HistogramDataPoint(
        attributes=dict(zip(names, labels, strict=True)),
        start_time_unix_nano=since_ns,
        time_unix_nano=at_ns,
        count=value.count,
        sum=value.sum,
        bucket_counts=tuple(value.counts),
        explicit_bounds=value.bounds,
        min=None,  # type: ignore[arg-type]  # what is not known is left out
        max=None,  # type: ignore[arg-type]
    )
