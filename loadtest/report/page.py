"""How do figures become a page that opens anywhere? One HTML file with everything in it, plotly.js included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from plotly.graph_objects import Figure
from plotly.offline import get_plotlyjs

from loadtest.report.style import STYLE

FIGURE_HEIGHT = 400
# Legible on light and on dark ground: the page follows the reader's colour scheme, the figures do not know it.
INK, GRID = "#808791", "rgba(128, 135, 145, 0.25)"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table: its heads, and rows of as many cells. Cells are text, whatever characters they hold."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page: what it shows, a sentence on how to read it, then its tables and figures."""

    title: str
    text: str = ""
    tables: Sequence[Grid] = ()
    figures: Sequence[Figure] = ()


def write_page(path: Path, title: str, facts: Mapping[str, str], sections: Sequence[Section]) -> None:
    """Write the file, and the folder it is to lie in; facts: what the figures hold for."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(title, facts, sections), encoding="utf-8")


def page(title: str, facts: Mapping[str, str], sections: Sequence[Section]) -> str:
    """The HTML."""
    drawn = any(section.figures for section in sections)
    script = f"<script>{get_plotlyjs()}</script>" if drawn else ""
    known = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    body = "".join(map(_section, sections))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{STYLE}</style>{script}</head>'
        f"<body><main><h1>{escape(title)}</h1><dl>{known}</dl>{body}</main></body></html>\n"
    )


def _section(section: Section) -> str:
    text = f"<p>{escape(section.text)}</p>" if section.text else ""
    tables = "".join(map(_table, section.tables))
    figures = "".join(f"<figure>{_figure(figure)}</figure>" for figure in section.figures)
    return f"<section><h2>{escape(section.title)}</h2>{text}{tables}{figures}</section>"


def _table(grid: Grid) -> str:
    heads = "".join(f'<th scope="col">{escape(head)}</th>' for head in grid.heads)
    rows = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in grid.rows)
    return f'<div class="scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'


def _figure(figure: Figure) -> str:
    figure.update_layout(
        template="none",
        height=FIGURE_HEIGHT,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": INK, "family": "system-ui, sans-serif"},
        margin={"l": 56, "r": 12, "t": 48, "b": 48},
        legend={"orientation": "h", "yanchor": "top", "y": -0.2},
    )
    figure.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    figure.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    options = {"responsive": True, "displaylogo": False, "displayModeBar": False}
    html: str = figure.to_html(full_html=False, include_plotlyjs=False, config=options)
    return html
