"""The figures' fixed parts: plotly accepts them, nothing leaves the origin, and colours can be told apart."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
import pytest

from web.figures import CONFIG, DARK, LIGHT, THEMES, Theme, figure_specs, latency_spec, metrics_spec, timeline_spec
from web.pages import STATIC_DIR


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(a: str, b: str) -> float:
    """Return the contrast of two colours as WCAG 2.2 defines it."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def _traces(spec: Any) -> dict[str, dict[str, Any]]:
    return dict(spec["traces"])


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_plotly_accepts_every_layout_and_every_trace(theme: Theme) -> None:
    timeline: Any = timeline_spec(theme)
    go.Figure(data=list(_traces(timeline).values()), layout=timeline["layout"])
    metrics: Any = metrics_spec(theme)
    layout = {
        **metrics["layout"],
        "xaxis": metrics["xaxis"],
        "yaxis": metrics["yaxis"],
        "annotations": [{**metrics["title"], "text": "reward", "x": 0, "y": 1}],
    }
    go.Figure(data=list(_traces(metrics).values()), layout=layout)
    latency: Any = latency_spec(theme)
    go.Figure(data=list(_traces(latency).values()), layout=latency["layout"])


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_plotly_accepts_traces_with_data_as_the_browser_fills_them(theme: Theme) -> None:
    traces = _traces(timeline_spec(theme))
    span = {**traces["span"], "y": [3, 4], "base": [0.0, 5.0], "x": [2.0, 1.0], "text": ["generate", ""]}
    span["marker"] = {**span["marker"], "color": [theme.methods[0], theme.methods[1]], "opacity": [1, 0.2]}
    hatched = {**traces["hatched_span"], "y": [3], "base": [7.0], "x": [2.0]}
    pattern = {**hatched["marker"]["pattern"], "shape": ["x"], "fgcolor": [theme.surface], "bgcolor": [theme.error]}
    hatched["marker"] = {**hatched["marker"], "pattern": pattern, "opacity": [1]}
    heat = {**traces["heat"], "x": [0, 1, 2], "y": [0, 1], "z": [[0.0, 0.5], [None, None]]}
    figure = go.Figure(data=[span, hatched, heat])
    assert [trace.type for trace in figure.data] == ["bar", "bar", "heatmap"]


def test_only_bar_heatmap_and_scatter_are_drawn_and_never_a_shape() -> None:
    for theme in THEMES:
        for spec in (timeline_spec(theme), metrics_spec(theme), latency_spec(theme)):
            assert {trace["type"] for trace in _traces(spec).values()} <= {"bar", "heatmap", "scatter"}
            assert "shapes" not in dict(spec["layout"])  # type: ignore[call-overload]


def test_nothing_is_sent_to_plotlys_cloud() -> None:
    assert CONFIG["showSendToCloud"] is False
    assert CONFIG["plotlyServerURL"] == ""
    assert CONFIG["displaylogo"] is False
    assert figure_specs()["config"] == CONFIG


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_colours_have_the_contrast_that_wcag_asks_for(theme: Theme) -> None:
    for colour in theme.methods:
        assert contrast(colour, theme.surface) >= 4.5, colour
    for _, colour in theme.phases:
        assert contrast(colour, theme.surface) >= 3, colour
    for colour in (theme.ink, theme.muted, theme.error, theme.accent):
        assert contrast(colour, theme.surface) >= 4.5, colour


@pytest.mark.parametrize("theme", THEMES, ids=lambda theme: theme.name)
def test_heat_grows_in_one_direction_of_lightness(theme: Theme) -> None:
    steps = [_luminance(colour) for colour in theme.heat]
    assert steps == sorted(steps, reverse=theme is LIGHT)
    assert min(abs(b - a) for a, b in pairwise(steps)) > 0.02


def test_the_style_sheet_has_the_same_colours_as_the_figures() -> None:
    css = (STATIC_DIR / "podium.css").read_text(encoding="utf-8") + (STATIC_DIR / "pages.css").read_text(
        encoding="utf-8"
    )
    pairs = {"surface": (LIGHT.surface, DARK.surface), "ink": (LIGHT.ink, DARK.ink)}
    pairs |= {"muted": (LIGHT.muted, DARK.muted), "line": (LIGHT.line, DARK.line), "error": (LIGHT.error, DARK.error)}
    pairs |= {name: (light, dict(DARK.phases)[name]) for name, light in LIGHT.phases}
    pairs |= {f"heat-{i}": pair for i, pair in enumerate(zip(LIGHT.heat, DARK.heat, strict=True))}
    pairs |= {f"g{i}": pair for i, pair in enumerate(zip(LIGHT.methods, DARK.methods, strict=True))}
    for name, (light, dark) in pairs.items():
        assert f"--{name}: light-dark({light}, {dark});" in css, name
