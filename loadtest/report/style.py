"""What do our pages look like? From a phone to a desk, by day and by night, and on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --ink: #1c2128; --soft: #59636e; --ground: #fff; --line: #d1d9e0; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #9198a1; --ground: #0d1117; --line: #3d444d; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 70rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2rem 0 .5rem; }
p { max-width: 45rem; color: var(--soft); }
dl { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: .2rem 1rem; font-size: .9rem; }
dt { color: var(--soft); }
dd { margin: 0; overflow-wrap: anywhere; }
figure { margin: 1rem 0; min-width: 0; overflow: hidden; break-inside: avoid; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--ground); }
"""
