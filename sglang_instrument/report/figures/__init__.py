"""Draw figures of a run: PNG, SVG or PDF."""
