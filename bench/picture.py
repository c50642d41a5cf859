# SPDX-License-Identifier: Apache-2.0
"""The picture of the gain in doc/performance.md, doc/performance/gain.svg: of the figures that doc/performance keeps, and of no others."""
import json
import os
from html import escape

WIDTH, LEFT, RIGHT, ROW = 720, 250, 90, 26
WITHOUT, WITH, LOCAL = "#9aa0a6", "#1a73e8", "#5f6368"
EPOCHS = 3  # in which `dev/bench peers` reads the dataset; without Monarch the PFS is read in each


def _median(kept, run, figure, condition):
    with open(os.path.join(kept, f"{run}.json"), encoding="ascii") as file:
        found = [entry["median"] for entry in json.load(file)["figures"] if (entry["figure"], entry["condition"]) == (figure, condition)]
    if not found:
        raise KeyError(f"{run}.json has no '{figure}' of '{condition}'")
    return found[0]


def _panels(kept):
    """(title, unit, rows of (name, value, colour))"""
    read = "PFS bytes of three epochs / dataset"
    yield (f"Read from the parallel file system in {EPOCHS} epochs, in datasets", "",
           [("without Monarch", float(EPOCHS), WITHOUT)]
           + [(f"with Monarch, {nodes} nodes", _median(kept, "peers", read, f"{nodes} nodes, small files"), WITH) for nodes in (2, 4, 8)])
    walk = "walk and stat, C"
    yield ("Listing 200,000 files and asking for their sizes, once they are known, in seconds", " s",
           [("without Monarch", _median(kept, "metadata", walk, "native"), WITHOUT),
            ("with Monarch", _median(kept, "metadata", walk, "serve"), WITH)])
    yield ("Time of an epoch of small files after the first, 4 readers, where 1 is a local disk", "",
           [("files copied to the node by hand", 1.0, LOCAL),
            ("with Monarch", _median(kept, "epochs-small", "later epochs / local", "small, 4 threads"), WITH)])


def _number(value):
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def svg(kept):
    """The picture as text, from the JSON files in that directory. It is readable on light and dark pages."""
    parts, y = [], 10
    for title, unit, rows in _panels(kept):
        y += 18
        parts.append(f'<text x="10" y="{y}" class="title">{escape(title)}</text>')
        y += 8
        most = max(value for _, value, _ in rows)
        for name, value, colour in rows:
            width = max(1.0, (WIDTH - LEFT - RIGHT) * value / most)
            parts.append(f'<text x="{LEFT - 10}" y="{y + 16}" text-anchor="end">{escape(name)}</text>')
            parts.append(f'<rect x="{LEFT}" y="{y + 4}" width="{width:.1f}" height="{ROW - 9}" fill="{colour}"/>')
            parts.append(f'<text x="{LEFT + width + 6:.1f}" y="{y + 16}">{_number(value)}{unit}</text>')
            y += ROW
        y += 6
    style = ("text{font:13px sans-serif;fill:#202124}.title{font-weight:bold}.page{fill:#fff}"
             "@media(prefers-color-scheme:dark){text{fill:#e8eaed}.page{fill:#202124}}")
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" height="{y}" role="img">',
                      "<title>What Monarch spares, as measured by dev/bench</title>", f"<style>{style}</style>",
                      f'<rect class="page" width="{WIDTH}" height="{y}"/>', *parts, "</svg>", ""])
