"""OpenTelemetry: recoveries as traces and figures as metrics, over OTLP/HTTP."""
