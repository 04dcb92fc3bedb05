"""Whether anything is exported, by the standard variables. Imports nothing of OpenTelemetry."""

from collections.abc import Mapping

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
METRICS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_METRICS_EXPORTER")


def wanted(environment: Mapping[str, str]) -> tuple[bool, bool]:
    """(traces, metrics): where an endpoint is named for them, unless they are switched off by ``none``, or all is by
    ``OTEL_SDK_DISABLED``."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False, False
    return _wanted(environment, *TRACES), _wanted(environment, *METRICS)


def _wanted(environment: Mapping[str, str], endpoint: str, exporter: str) -> bool:
    named = bool(environment.get(ENDPOINT) or environment.get(endpoint))
    return named and environment.get(exporter, "otlp") != "none"
