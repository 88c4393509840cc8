# SPDX-License-Identifier: Apache-2.0
"""picture.py JSON SVG: draws what a run of `make bench-workloads` found: for each chosen figure a bar for each tool, on a logarithmic axis of
its own panel. The footer names date and machine. Figures that the run has not are left out."""
import json
import math
import sys
from xml.sax.saxutils import escape

# (workload, figure, how a case begins, title)
PANELS = (
    ("weights", "handed, ms", "one node", "Weights to four samplers on one node: until all have them, ms"),
    ("weights", "handed, ms", "three nodes, 256 MiB, 2gbit", "Weights to four samplers on two other nodes, links of 2 Gbit/s: until all have them, ms"),
    ("blocks", "GB/s", "512 blocks of 64 KiB, 8", "512 blocks of 64 KiB between two nodes, 8 requests in flight: GB/s (longer is better)"),
    ("blocks", "GB/s", "4096 blocks of 16 KiB, 8", "4,096 blocks of 16 KiB between two nodes, 8 requests in flight: GB/s (longer is better)"),
    ("queues", "read p50, ms", "213 MB", "An array of 213 MB from one process to another: until it is read, ms"),
    ("queues", "read p50, ms", "a dict", "A dict of 10,000 tensors from one process to another: until it is read, ms"),
    ("loader", "batches/s", "epochs", "Four loader workers, batches of 20 MB: batches a second (longer is better)"),
    ("rl", "s/step", "one trainer", "Ray: one trainer, four samplers: seconds a step"),
)
LEFT, WIDTH, BAR, GAP = 250, 430, 15, 4


def bars(found, workload, figure, case):
    """[(title of the case, [(side, row)])] of a panel."""
    cases = {}
    for row in found.get(workload, {}).get("rows", ()):
        if row.get("figure") == figure and row["case"].startswith(case) and row["median"] > 0:
            cases.setdefault(row["case"], []).append(row)
    return cases


def number(value):
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def draw(source, target):
    with open(source) as file:
        found = json.load(file)
    out, y = [], 34
    for workload, figure, start, title in PANELS:
        cases = bars(found, workload, figure, start)
        if not cases:
            continue
        out.append(f'<text x="12" y="{y}" class="t">{escape(title)}</text>')
        y += 8
        for case, rows in cases.items():
            if len(cases) > 1:
                y += 14
                out.append(f'<text x="12" y="{y}" class="c">{escape(case)}</text>')
                y += 4
            least, most = min(row["least"] for row in rows), max(row["most"] for row in rows)
            low = 10 ** math.floor(math.log10(least) - 0.3)
            scale = WIDTH / max(math.log10(most / low), 0.1)

            def x(value):
                return LEFT + scale * math.log10(max(value, low) / low)
            for row in rows:
                y += BAR + GAP
                ours = "rdtd" in row["side"]
                out.append(f'<text x="{LEFT - 6}" y="{y - 3}" class="s">{escape(row["side"])}</text>'
                           f'<rect x="{LEFT}" y="{y - BAR}" width="{x(row["median"]) - LEFT:.1f}" height="{BAR}" fill="{"#1b5e9e" if ours else "#c9c2b4"}"/>'
                           f'<line x1="{x(row["least"]):.1f}" x2="{x(row["most"]):.1f}" y1="{y - BAR / 2:.1f}" y2="{y - BAR / 2:.1f}" stroke="#444"/>'
                           f'<text x="{x(row["most"]) + 6:.1f}" y="{y - 3}" class="v">{number(row["median"])}</text>')
        y += 34
    entry = next(iter(found.values()))
    rounds = sorted({one["rounds"] for one in found.values()})
    about = entry["machine"]
    footer = f'{entry["date"]}, {about["cores"]} processors ({about["processor"]}), {about["memory_gib"]} GiB, Linux {about["kernel"].split("-")[0]}; ' \
             f'medians of {" or ".join(map(str, rounds))} rounds, lines: ranges; logarithmic'
    out.append(f'<text x="12" y="{y}" class="c">{escape(footer)}</text>')
    with open(target, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 760 {y + 14}" width="760" height="{y + 14}" font-family="sans-serif">\n'
                   '<style>.t{font-size:14px;font-weight:bold}.c{font-size:11px;fill:#555}.s{font-size:12px;text-anchor:end}.v{font-size:11px}</style>\n'
                   f'<rect width="760" height="{y + 14}" fill="white"/>\n' + "\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    draw(*sys.argv[1:3])
