"""Serve what is known of a run over HTTP: a page, OpenMetrics for Prometheus, JSON."""
