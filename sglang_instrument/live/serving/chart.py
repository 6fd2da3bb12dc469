"""Draw the last steps as stacked bars: SVG whose colours are classes, as the page allows no inline styles."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from sglang_instrument.live.state import StepDone
from sglang_instrument.live.words import duration
from sglang_instrument.part_colours import DARK_COLOURS, PART_COLOURS
from sglang_instrument.plain_text import plain

_MOST: Final = 60
_HEIGHT: Final = 100.0
_WIDTH: Final = 24  # pixels of a bar, where the screen has room
_REST: Final = "other"  # what the chart calls a part that has no colour


def chart_css() -> str:
    """Return the colours of the parts, on light and on dark paper, as classes for bars and for the legend."""

    def rules(colours: Mapping[str, str]) -> str:
        return "".join(
            f".{_class(part)} {{ fill: {colour}; background: {colour}; }}\n"
            for part, colour in colours.items()
        )

    dark = {part: colour for part, colour in DARK_COLOURS.items() if colour != PART_COLOURS[part]}
    return f"{rules(PART_COLOURS)}@media (prefers-color-scheme: dark) {{\n{rules(dark)}}}"


def chart_of(done: Sequence[StepDone]) -> str:
    """Return the last training steps as bars, with a sentence and a legend; "" before the first."""
    steps = [step for step in done if not step.validate and step.ledger][-_MOST:]
    if not steps:
        return ""
    bars = [_by_part(step.ledger) for step in steps]
    top = max(sum(bar.values()) for bar in bars) or 1.0
    parts = [part for part in PART_COLOURS if any(bar.get(part, 0.0) > 0.002 * top for bar in bars)]
    drawn = "".join(
        _bar(step, place, bar, top) for place, (step, bar) in enumerate(zip(steps, bars, strict=True))
    )
    sentence = escape(_sentence(steps, bars))
    legend = "".join(f'<li><span class="swatch {_class(part)}"></span>{escape(part)}</li>' for part in parts)
    ends = f"<span>step {steps[0].step}</span>" + (f"<span>{steps[-1].step}</span>" if len(steps) > 1 else "")
    width = _WIDTH * len(steps)
    size = f'width="{width}" height="112" viewBox="0 0 {width} {_HEIGHT:.0f}" preserveAspectRatio="none"'
    picture = f'<svg class="bars" role="img" aria-label="{sentence}" {size}>{drawn}</svg>'
    return (
        f'<figcaption>{sentence}</figcaption><div class="drawing">{picture}'
        f'<p class="ends" aria-hidden="true">{ends}</p></div><ul class="legend">{legend}</ul>'
    )


def _sentence(steps: Sequence[StepDone], bars: Sequence[Mapping[str, float]]) -> str:
    seconds = [sum(bar.values()) for bar in bars]
    longest = max(range(len(steps)), key=seconds.__getitem__)
    if len(steps) == 1:
        return f"Step {steps[0].step}: {duration(seconds[0])} until the next began"
    usual = sorted(seconds)[len(seconds) // 2]
    return (
        f"The last {len(steps)} steps, each until the next began: usually {duration(usual)}, "
        f"{duration(seconds[longest])} at most (step {steps[longest].step})"
    )


def _by_part(ledger: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of the parts in the order of stacks; what has no colour is other work."""
    by_part = dict.fromkeys(PART_COLOURS, 0.0)
    for part, sec in ledger.items():
        by_part[part if part in by_part else _REST] += max(0.0, sec)
    return by_part


def _bar(step: StepDone, place: int, bar: Mapping[str, float], top: float) -> str:
    whole = sum(bar.values())
    parts = sorted(bar, key=lambda part: -bar[part])[:4]
    words = ", ".join(f"{part} {duration(bar[part])}" for part in parts if bar[part] > 0)
    shapes, above = [], _HEIGHT
    for part, sec in bar.items():
        high = _HEIGHT * sec / top
        if high < 0.05:
            continue
        above -= high
        shapes.append(
            f'<rect class="{_class(part)}" x="{place * _WIDTH + 1}" y="{max(0.0, above):.2f}" '
            f'width="{_WIDTH - 2}" height="{high:.2f}"/>'
        )
    title = escape(plain(f"step {step.step}: {duration(whole)}: {words}"))
    return f"<g><title>{title}</title>{''.join(shapes)}</g>"


def _class(part: str) -> str:
    return f"part-{part.replace(' ', '-')}"
