# SPDX-License-Identifier: Apache-2.0
"""Figures that a benchmark judges: a value with its spread beside its bound; as a table, JSON or a plot."""
import json
import os
import platform
import statistics
import sys

SENSES = {"<=": lambda value, bound: value <= bound, ">=": lambda value, bound: value >= bound,
          "1 ±": lambda value, bound: abs(value - 1) <= bound}


def figure(name, condition, values, bound=None, sense="<=", unit=""):
    """One figure under one condition.  `values` has one number per round; the median counts."""
    values = [float(value) for value in values]
    median = statistics.median(values)
    return {"figure": name, "condition": condition, "unit": unit, "median": median, "low": min(values),
            "high": max(values), "values": values, "bound": bound, "sense": sense,
            "met": None if bound is None else SENSES[sense](median, bound)}


def number(value):
    """Three digits that count, and no exponent."""
    if value == 0 or abs(value) >= 1000:
        return f"{value:.0f}"
    digits = 3 if abs(value) < 10 else 1
    return f"{value:.{digits}f}"


def bound_of(entry):
    if entry["bound"] is None:
        return None
    return f"{entry['sense']} {entry['bound']:g}"


def limits(entry):
    bound = entry["bound"]
    return [] if bound is None else [1 - bound, 1 + bound] if entry["sense"] == "1 ±" else [bound]


def verdict_of(entry):
    if entry["met"] is None:
        return None
    if entry["met"]:
        return "met"
    if entry["bound"] == 0:
        return "missed"
    if entry["sense"] == "1 ±":
        return "missed"
    return f"missed by {abs(entry['median'] / entry['bound'] - 1) * 100:.1f} %"


def table(entries):
    header = ("figure", "condition", "median", "low", "high", "unit", "bound", "")
    rows, last = [], None
    for entry in entries:
        rows.append((entry["figure"] if entry["figure"] != last else "", entry["condition"], number(entry["median"]),
                     number(entry["low"]), number(entry["high"]), entry["unit"], bound_of(entry) or "-",
                     verdict_of(entry) or "-"))
        last = entry["figure"]
    return format_table(header, "llrrrlll", rows)


def format_table(header, alignment, rows):
    """Aligned columns; `alignment` has an l or r for each.  None is shown as a dash."""
    cells = [["-" if cell is None else str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ["  ".join(cell.ljust(width) if side == "l" else cell.rjust(width)
                       for cell, width, side in zip(row, widths, alignment)).rstrip() for row in cells]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def plot(entries, title, file):
    """A panel per figure: for each condition all rounds as dots, the median as a line; the bound is dashed."""
    import matplotlib  # pylint: disable=import-outside-toplevel  # dev/deps bench has it; only plots need it
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.fonttype"] = "none"  # text as text: a fifth of the size
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel

    names = list(dict.fromkeys(entry["figure"] for entry in entries))
    heights = [sum(entry["figure"] == name for entry in entries) for name in names]
    size = (7.5, 0.9 * len(names) + 0.24 * sum(heights))
    drawing, panels = pyplot.subplots(len(names), 1, squeeze=False, figsize=size,
                                      height_ratios=[count + 1.5 for count in heights])
    for name, (panel,) in zip(names, panels):
        mine = [entry for entry in entries if entry["figure"] == name]
        for row, entry in enumerate(mine):
            color = "tab:red" if entry["met"] is False else "tab:blue"
            panel.plot(entry["values"], [row] * len(entry["values"]), ".", color=color, alpha=0.45)
            panel.plot([entry["median"]] * 2, [row - 0.35, row + 0.35], color=color)
            for limit in limits(entry):
                panel.plot([limit] * 2, [row - 0.5, row + 0.5], "--", color="0.4", linewidth=1)
        panel.set_yticks(range(len(mine)), [entry["condition"] for entry in mine], fontsize=7)
        panel.set_ylim(len(mine) - 0.4, -0.6)
        panel.tick_params(axis="x", labelsize=7)
        panel.set_title(name + (f" [{mine[0]['unit']}]" if mine[0]["unit"] else ""), fontsize=8, loc="left")
        panel.grid(axis="x", alpha=0.3)
    drawing.suptitle(title, fontsize=9)
    drawing.tight_layout()
    drawing.savefig(file)


def machine():
    with open("/proc/loadavg", encoding="ascii") as file:
        load = float(file.read().split()[0])
    return {"cpus": os.cpu_count(), "kernel": platform.release(), "load": load}


def finish(args, name, entries, text="", failures=(), **more):
    """Print the results as --json or as text and table, and draw --plot.  Returns the exit code: 1 if a failure
    made the figures worthless."""
    if args.json:
        print(json.dumps({"bench": name, "parameters": vars(args), "machine": machine(), "failures": list(failures),
                          "figures": entries, **more}, indent=1))
    else:
        print("\n\n".join(part for part in (text, table(entries) if entries else "") if part))
    if args.plot:
        plot(entries, f"dev/bench {name}", args.plot)
    for failure in failures:
        print(f"bench: FAILED: {failure}", file=sys.stderr)
    return 1 if failures else 0
