"""Put texts, data and scripts into one HTML file that loads nothing from outside."""

from __future__ import annotations

import base64
import gzip
import importlib.util
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from sglang_instrument.analysis.answers.as_json import as_json
from sglang_instrument.errors import InstrumentError
from sglang_instrument.extras import install_extra
from sglang_instrument.plain_text import plain_lines
from sglang_instrument.report.html.numbers import count, decimal, percent, seconds, short_bytes, short_count
from sglang_instrument.report.palette import COLOURED, PART_COLOURS, as_css, part_of

#: In the order in which they are put into the page.
SCRIPTS: Final = (
    "base.js",
    "numbers.js",
    "tables.js",
    "state.js",
    "charts.js",
    "steps.js",
    "workers.js",
    "gauges.js",
    "distributions.js",
    "requests.js",
    "gaps.js",
    "comparison.js",
    "whatif.js",
    "icicle.js",
    "icicle_input.js",
    "timeline_model.js",
    "timeline_paint.js",
    "timeline_cursor.js",
    "timeline.js",
    "timeline_input.js",
    "timeline_keys.js",
    "main.js",
)


def render(
    story: Mapping[str, Any], chart_facts: Mapping[str, Any], packed: Mapping[str, bytes], version: str
) -> str:
    """Return the page.

    Args:
        story: The texts and numbers of the templates.
        chart_facts: The data of the charts.
        packed: The packed spans of the steps with a timeline, by the step's key.
        version: Of this package.
    """
    facts = {
        **chart_facts,
        "phases": list(COLOURED),
        "parts_of_phases": [part_of(phase) for phase in COLOURED],
        "part_names": list(PART_COLOURS),
        "chain": story["chain"],
        "title": story["title"],
    }
    page = _templates().get_template("report.html")
    return page.render(
        story=story,
        made=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        version=version,
        style=as_css() + _read("style.css"),
        scripts=[_read(name) for name in SCRIPTS],
        facts=_packed(as_json(facts)),
        spans={key: _packed(raw) for key, raw in packed.items()},
        plotly=_packed_plotly(),
    )


@lru_cache(1)  # compiling the templates takes a tenth of a second
def _templates() -> Environment:
    pages = Environment(
        loader=PackageLoader("sglang_instrument.report.html"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_without_controls,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters |= {
        "seconds": seconds,
        "count": count,
        "percent": percent,
        "decimal": decimal,
        "bytes": short_bytes,
        "short_count": short_count,
    }
    return pages


def _without_controls(value: Any) -> Any:
    """Escape control characters in a value of a template: marks of writing direction reorder a whole line."""
    return plain_lines(value) if type(value) is str else value


def _packed(raw: bytes) -> str:
    """Return bytes as text that needs no escaping; a browser unpacks it faster than a disk reads it plain."""
    return base64.b64encode(gzip.compress(raw, 6, mtime=0)).decode()


def _read(name: str) -> str:
    return (Path(__file__).parent / "templates" / name).read_text(encoding="utf-8")


@lru_cache(1)  # packing takes a quarter of a second
def _packed_plotly() -> str:
    return _packed(_plotly())


def _plotly() -> bytes:
    """Return plotly.js from the plotly package, without importing the package: that takes a second."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            return path.read_bytes()
    raise InstrumentError(f"the report needs plotly: {install_extra('report')}")
