"""What is fixed about the figures: colours, layouts and the look of each kind of trace, as plain dicts in both themes.

The browser fills in the data (``static/js/timeline_figure.js``, ``static/js/metrics.js``), so that the driver never
builds a figure. Traces are only bar, heatmap and scatter: no WebGL, whose contexts browsers ration, and no shapes for
spans, which paint several times slower than bars. The tests hand every spec to ``plotly.graph_objects.Figure``.

The palettes are ordered so that neighbours differ in lightness as well as in hue, after M. Okabe and K. Ito's rule for
colour-blind readers; every colour has a contrast of at least 3 to its surface (WCAG 2.2, 1.4.11), a method's of 4.5, as
its name is written in it (1.4.3).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

Spec: TypeAlias = dict[str, object]

FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial, sans-serif'
CONFIG: Spec = {
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "displaylogo": False,
    "displayModeBar": False,
    "responsive": True,
    "scrollZoom": False,
    "doubleClick": False,
    "showTips": False,
}


@dataclass(frozen=True, slots=True)
class Theme:
    """The colours of a theme. ``methods`` are given to methods by name, ``phases`` in the order of a call's steps."""

    name: str
    surface: str
    raised: str
    ink: str
    muted: str
    line: str
    grid: str
    stripe: str
    error: str
    warning: str
    accent: str
    methods: tuple[str, ...]
    phases: tuple[tuple[str, str], ...]
    heat: tuple[str, ...]


LIGHT = Theme(
    name="light",
    surface="#ffffff",
    raised="#ffffff",
    ink="#171a20",
    muted="#5a6473",
    line="#dfe3e8",
    grid="#eceff3",
    stripe="#e4e8ee",
    error="#c4281c",
    warning="#a5620f",
    accent="#2458c5",
    methods=(
        "#2f6db5",
        "#a5620f",
        "#0d7f69",
        "#a34a8f",
        "#2a7aa8",
        "#7a7416",
        "#5546a8",
        "#c2446a",
        "#8c5a35",
    ),
    phases=(
        ("gate", "#8a93a0"),
        ("dispatch", "#5546a8"),
        ("execute", "#a5620f"),
        ("wait", "#7f92aa"),
        ("collect", "#0d7f69"),
        ("unpad", "#a34a8f"),
    ),
    heat=("#f1f3f6", "#bcd6f2", "#7fb0e2", "#3f80c6", "#174f93"),
)
DARK = Theme(
    name="dark",
    surface="#14181f",
    raised="#1b212a",
    ink="#e7eaf0",
    muted="#9aa5b4",
    line="#2a323d",
    grid="#212832",
    stripe="#232b36",
    error="#ff6b5e",
    warning="#f0a24c",
    accent="#7fb0ff",
    methods=(
        "#6ea8ef",
        "#f0a24c",
        "#3fc7a6",
        "#d58ac6",
        "#8fd3f5",
        "#c9c152",
        "#9a8df0",
        "#f28aa6",
        "#c99a72",
    ),
    phases=(
        ("gate", "#7d8794"),
        ("dispatch", "#9a8df0"),
        ("execute", "#f0a24c"),
        ("wait", "#71839b"),
        ("collect", "#3fc7a6"),
        ("unpad", "#d58ac6"),
    ),
    heat=("#1b212a", "#1d3f66", "#2a68a8", "#4f97de", "#a6d0ff"),
)
THEMES = (LIGHT, DARK)


def figure_specs() -> Spec:
    """Return all that the browser needs to draw: plotly's config, and per theme the colours and the figures."""
    return {
        "config": CONFIG,
        "themes": {
            theme.name: {
                "colours": _colours(theme),
                "timeline": timeline_spec(theme),
                "metrics": metrics_spec(theme),
                "latency": latency_spec(theme),
            }
            for theme in THEMES
        },
    }


def timeline_spec(theme: Theme) -> Spec:
    """Return the timeline's layout and its traces by kind; x is in ms since the run's start, y the row's number."""
    return {
        "layout": {
            **_layout(theme),
            "barmode": "overlay",
            "bargap": 0,
            "dragmode": "zoom",
            "hovermode": "closest",
            "hoverdistance": 12,
            "showlegend": False,
            "margin": {"l": 148, "r": 16, "t": 8, "b": 34},
            "xaxis": {
                **_axis(theme),
                "type": "linear",
                "tickmode": "array",
                "showspikes": True,
                "spikemode": "across",
                "spikesnap": "cursor",
                "spikethickness": 1,
                "spikedash": "solid",
                "spikecolor": theme.muted,
            },
            "yaxis": {
                **_axis(theme),
                "showgrid": False,
                "tickmode": "array",
                "fixedrange": True,
                "automargin": False,
                "ticks": "outside",
                "ticklen": 7,
                "tickcolor": "rgba(0,0,0,0)",
            },
        },
        "traces": {
            "step": {**_bars(0.62), "marker": {"color": theme.stripe, "line": {"width": 0}}, **_text(theme.muted)},
            "phase": {**_bars(0.72), "marker": {"line": {"width": 0}}, **_text(_darker(theme))},
            "hatched_phase": {**_bars(0.72), "marker": _hatched(theme, 6)},
            "queued": {
                **_bars(0.16),
                "hoverinfo": "skip",
                "marker": {"color": theme.muted, "line": {"width": 0}},
            },
            "span": {
                **_bars(0.78),
                "marker": {"line": {"width": 0.5, "color": theme.surface}},
                **_text(theme.surface),
            },
            "hatched_span": {**_bars(0.78), "marker": _hatched(theme, 7)},
            "selected": {
                **_bars(0.94),
                "hoverinfo": "skip",
                "marker": {"color": "rgba(0,0,0,0)", "line": {"width": 2, "color": theme.ink}},
            },
            "marker": {
                "type": "scatter",
                "mode": "markers",
                "marker": {"size": 9, "line": {"width": 1, "color": theme.surface}},
                "hoverinfo": "none",
            },
            "heat": _heat(theme),
        },
    }


def metrics_spec(theme: Theme) -> Spec:
    """Return the layout and trace of the steps' metrics: small multiples over one axis of steps."""
    return {
        "layout": {
            **_layout(theme),
            "hovermode": "x",
            "dragmode": False,
            "showlegend": False,
            "margin": {"l": 46, "r": 12, "t": 22, "b": 28},
        },
        "xaxis": {**_axis(theme), "showgrid": False, "fixedrange": True, "tickformat": "d", "nticks": 6},
        "yaxis": {**_axis(theme), "nticks": 4, "fixedrange": True, "showline": False, "ticks": ""},
        "traces": {
            "metric": {
                "type": "scatter",
                "mode": "lines+markers",
                "line": {"width": 1.75, "color": theme.accent},
                "marker": {"size": 4, "color": theme.accent},
                "hovertemplate": "step %{x}: %{y:.4~g}<extra></extra>",
            },
        },
        "title": {
            "font": {"size": 12, "color": theme.ink},
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "bottom",
            "xref": "paper",
            "yref": "paper",
        },
    }


def latency_spec(theme: Theme) -> Spec:
    """Return the layout and traces of how long calls take over time; y is the logarithm to base 10 of ms."""
    heat = {**_heat(theme), "hoverinfo": "all"}
    line: Spec = {"type": "scatter", "mode": "lines", "hovertemplate": "%{text}<extra></extra>"}
    return {
        "layout": {
            **_layout(theme),
            "hovermode": "closest",
            "dragmode": False,
            "showlegend": True,
            "legend": {"orientation": "h", "x": 1, "xanchor": "right", "y": 1, "yanchor": "bottom"},
            "margin": {"l": 64, "r": 16, "t": 26, "b": 34},
            "xaxis": {**_axis(theme), "type": "linear", "tickmode": "array", "fixedrange": True, "showgrid": False},
            "yaxis": {**_axis(theme), "tickmode": "array", "fixedrange": True},
        },
        "traces": {
            "heat": {
                **heat,
                "ygap": 0,
                "hovertemplate": "%{customdata[0]} calls of %{customdata[1]} to %{customdata[2]}<br>"
                "from %{text}<extra></extra>",
            },
            "ranks": {
                **heat,
                "hovertemplate": "rank %{customdata[0]}: %{customdata[1]}, %{customdata[2]}<br>"
                "from %{text}<extra></extra>",
            },
            "p50": {**line, "line": {"width": 2, "color": theme.ink, "shape": "hvh"}},
            "p95": {**line, "line": {"width": 2, "color": theme.error, "shape": "hvh", "dash": "dot"}},
        },
    }


def _heat(theme: Theme) -> Spec:
    return {
        "type": "heatmap",
        "zmin": 0,
        "zmax": 1,
        "xgap": 0,
        "ygap": 2,
        "colorscale": _classes(theme.heat),
        "showscale": False,
        "hoverongaps": False,
        "hoverinfo": "none",
    }


def _colours(theme: Theme) -> Spec:
    return {
        "methods": list(theme.methods),
        "phases": dict(theme.phases),
        "heat": list(theme.heat),
        "error": theme.error,
        "warning": theme.warning,
        "muted": theme.muted,
        "ink": theme.ink,
        "surface": theme.surface,
        "accent": theme.accent,
    }


def _layout(theme: Theme) -> Spec:
    return {
        "autosize": True,
        "paper_bgcolor": theme.surface,
        "plot_bgcolor": theme.surface,
        "font": {"family": FONT, "size": 11.5, "color": theme.ink},
        "hoverlabel": {
            "bgcolor": theme.raised,
            "bordercolor": theme.line,
            "font": {"family": FONT, "size": 12, "color": theme.ink},
            "align": "left",
            "namelength": 0,
        },
    }


def _axis(theme: Theme) -> Spec:
    return {
        "showgrid": True,
        "gridcolor": theme.grid,
        "zeroline": False,
        "linecolor": theme.line,
        "showline": True,
        "ticks": "outside",
        "ticklen": 4,
        "tickcolor": theme.line,
        "tickfont": {"color": theme.muted, "size": 11},
    }


def _bars(width: float) -> Spec:
    """Return a horizontal bar trace; ``width`` is in rows."""
    return {"type": "bar", "orientation": "h", "width": width, "hoverinfo": "none"}


def _text(colour: str) -> Spec:
    return {
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        "constraintext": "none",
        "cliponaxis": True,
        "insidetextfont": {"size": 11, "color": colour},
    }


def _hatched(theme: Theme, size: int) -> Spec:
    """Return a marker whose bars have each a pattern, its lines and its ground (``shape``, ``fgcolor``, ``bgcolor``).

    Its own colour must stay a single one: given one per bar, plotly leaves the pattern's ground out.
    """
    pattern = {"solidity": 0.4, "size": size, "fillmode": "replace"}
    return {"color": theme.muted, "line": {"width": 0}, "pattern": pattern}


def _darker(theme: Theme) -> str:
    """Return the theme's dark colour, which is legible on the middle grey of waiting."""
    return theme.ink if theme is LIGHT else theme.surface


def _classes(colours: tuple[str, ...]) -> list[list[object]]:
    """Return a colour scale of flat classes: the first for nothing at all, the others in equal parts of 0..1."""
    n = len(colours) - 1
    idle = 0.002
    stops: list[list[object]] = [[0.0, colours[0]], [idle, colours[0]]]
    for i, colour in enumerate(colours[1:]):
        stops += [[idle if i == 0 else i / n, colour], [(i + 1) / n, colour]]
    return stops
