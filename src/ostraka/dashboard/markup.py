"""HTML and SVG whose text is escaped by construction, and two charts."""

import statistics
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 420, 200
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 8, 10, 24
_LONG = 4.0  # times the median, from which on a bar is cut
_STEPS = 4  # at most, on an axis
_NOTHING = 1e-9  # is drawn as 0: a fourth of the least numbers is 0
_NUMBERED = 10  # rounds that have room for their number


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


def el(name: str, *content: object, **attributes: object) -> Markup:
    """An element. Content that is no Markup is escaped, and what is None or False is left out.

    An attribute that is True has no value. In names, an underscore stands for a hyphen, and one at
    the end for nothing (`class_`).
    """
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_text(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    inner = join(*content)
    return Markup(f"<{name}{shown}>{inner}</{name}>")


def join(*content: object) -> Markup:
    return Markup(
        "".join(
            each if isinstance(each, Markup) else _text(each)
            for each in content
            if each is not None and each is not False
        )
    )


def _text(value: object) -> str:
    return escape(str(value), quote=True)


def stacked_bars(
    title: str, rounds: Mapping[int, Mapping[str, float]], stages: Sequence[str]
) -> Markup:
    """A bar for each round, of its stages. Colours are the classes s0, s1, ...

    A round that took many times as long as most would flatten all others: its bar is cut, and has
    its length written on it.
    """
    totals = [sum(each.values()) for each in rounds.values()]
    usual = _LONG * statistics.median(totals)
    top, ticks = _scale(min(max(totals), usual) if usual > 0 else max(totals))
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(rounds))
    bars = []
    for at, (number, times) in enumerate(rounds.items()):
        left, height, total = _LEFT + at * step, 0.0, sum(times.values())
        for which, stage in enumerate(stages):
            part = min(times.get(stage, 0.0) / top * _depth(), _depth() - height)
            height += part
            bars.append(
                el(
                    "rect",
                    el("title", f"round {number}, {stage}: {times.get(stage, 0.0):.3g} s"),
                    class_=f"s{which}",
                    x=f"{left + step * 0.1:.1f}",
                    y=f"{_TOP + _depth() - height:.1f}",
                    width=f"{step * 0.8:.1f}",
                    height=f"{part:.1f}",
                )
            )
        if total > top:
            middle = left + step / 2
            bars.append(el("text", f"{total:.2g} s", class_="cut", x=f"{middle:.1f}", y=_TOP + 12))
    return _chart(
        title, top=top, ticks=ticks, rounds=tuple(rounds), step=step, drawn=bars, unit=" s"
    )


def line(title: str, values: Mapping[int, float], *, percent: bool = False) -> Markup:
    """One figure by round."""
    top, ticks = (100.0, (0, 25, 50, 75, 100)) if percent else _scale(max(values.values()))
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(values))
    shown = [100 * each if percent else each for each in values.values()]
    places = [
        (_LEFT + (at + 0.5) * step, _TOP + _depth() * (1 - min(max(each, 0.0), top) / top))
        for at, each in enumerate(shown)
    ]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    marks = [
        el(
            "circle",
            el("title", f"round {number}: {value:.3g}{' %' if percent else ''}"),
            cx=f"{x:.1f}",
            cy=f"{y:.1f}",
            r=2.5 if len(values) <= 40 else 1,
        )
        for (number, (x, y)), value in zip(zip(values, places, strict=True), shown, strict=True)
    ]
    drawn = [el("polyline", points=path), *marks]
    return _chart(
        title,
        top=top,
        ticks=ticks,
        rounds=tuple(values),
        step=step,
        drawn=drawn,
        unit=" %" if percent else "",
    )


def _chart(
    title: str,
    *,
    top: float,
    ticks: Sequence[float],
    rounds: Sequence[int],
    step: float,
    drawn: Sequence[Markup],
    unit: str,
) -> Markup:
    grid = []
    for tick in ticks:
        y = _TOP + _depth() * (1 - tick / top)
        grid.append(el("path", class_="grid", d=f"M{_LEFT} {y:.1f}H{_WIDTH - _RIGHT}"))
        grid.append(
            el("text", f"{tick:g}{unit}", x=_LEFT - 6, y=f"{y + 3.5:.1f}", text_anchor="end")
        )
    every = -(-len(rounds) // _NUMBERED)
    numbers = [
        el(
            "text",
            number,
            x=f"{_LEFT + (at + 0.5) * step:.1f}",
            y=_HEIGHT - 8,
            text_anchor="middle",
        )
        for at, number in enumerate(rounds)
        if at % max(1, every) == 0
    ]
    return el(
        "svg",
        el("title", title),
        *grid,
        *numbers,
        *drawn,
        class_="chart",
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=title,
    )


def _depth() -> float:
    return _HEIGHT - _TOP - _BOTTOM


def _scale(most: float) -> tuple[float, list[float]]:
    """The end of an axis, and its ticks: round numbers, of which there are few."""
    if not most > _NOTHING:
        return 1.0, [0.0, 1.0]
    unit = 10.0
    while unit / 10 >= most / _STEPS:
        unit /= 10
    while unit < most / _STEPS:
        unit *= 10
    step = next(
        (unit / 10 * each for each in (1, 2, 2.5, 5) if unit / 10 * each >= most / _STEPS), unit
    )
    count = int(most / step) + (most % step > 0)
    return step * count, [step * each for each in range(count + 1)]
