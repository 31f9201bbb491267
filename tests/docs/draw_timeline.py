#!/usr/bin/env python3
"""Usage: draw_timeline.py TRACE.json PICTURE.svg: the compute lanes of a trace that `smsim --trace` wrote, for docs/.

docs/timeline.svg: smsim scenarios/llama2_7b_p4d.toml --set cluster.nodes=1 --set plan.data_parallel=2
--set plan.pipeline_parallel=4 --set plan.micro_batch=1 --set plan.global_batch=16 --set plan.sharding=optimizer --trace TRACE.json
"""
import json
import re
import sys

WIDTH, LEFT, ROW, BAR = 900, 70, 30, 22
COLOURS = {"forward": "#4477aa", "backward": "#66ccee", "recompute": "#ccbb44", "optimizer": "#aa3377"}  # Paul Tol's "bright"
KINDS = {"F": "forward", "B": "backward", "R": "recompute", "optimizer": "optimizer"}  # by the names of events

trace = json.load(open(sys.argv[1]))
events = trace["traceEvents"] if isinstance(trace, dict) else trace
names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
lanes = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name" and e["args"]["name"] == "compute"}
work = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in lanes]
end = max(e["ts"] + e["dur"] for e in work)
scale = (WIDTH - LEFT - 10) / end
ranks = sorted({e["pid"] for e in work})
height = ROW * len(ranks) + 50
out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">',
       f'<rect width="{WIDTH}" height="{height}" fill="white"/>']
for row, rank in enumerate(ranks):
    top = 8 + ROW * row
    out.append(f'<text x="8" y="{top + 15}">{names[rank].split(" (")[0]}</text>')
    out.append(f'<rect x="{LEFT}" y="{top}" width="{end * scale:.1f}" height="{BAR}" fill="#eeeeee"/>')
    for e in work:
        kind = KINDS.get(re.match(r"[A-Z]?(?=\d)|optimizer|", e["name"]).group())
        if e["pid"] != rank or kind is None:
            continue
        out.append(f'<rect x="{LEFT + e["ts"] * scale:.1f}" y="{top}" width="{max(e["dur"] * scale, 0.3):.1f}" height="{BAR}" '
                   f'fill="{COLOURS[kind]}" stroke="white" stroke-width="{0.4 if kind == "forward" else 0}"/>')
foot = 8 + ROW * len(ranks) + 18
for i, (kind, colour) in enumerate(COLOURS.items()):
    out.append(f'<rect x="{LEFT + 110 * i}" y="{foot - 11}" width="14" height="14" fill="{colour}"/>'
               f'<text x="{LEFT + 20 + 110 * i}" y="{foot}">{kind}</text>')
out.append(f'<text x="{WIDTH - 10}" y="{foot}" text-anchor="end">one step, {end / 1e6:.2f} s</text></svg>')
open(sys.argv[2], "w").write("\n".join(out) + "\n")
