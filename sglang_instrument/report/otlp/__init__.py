"""Requests, turns and tools as spans of OpenTelemetry; needs the extra `otlp`."""
