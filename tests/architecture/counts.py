#!/usr/bin/env python3
"""The house in figures: counts of a checkout, a room a row, and limits that may not be exceeded.

usage: counts.py [ROOT] [--since COMMIT] [--check LIMITS | --lower LIMITS | --list COUNT]
  ROOT            any checkout of this project, also an old one (default: the one this file lies in)
  --since COMMIT  count commit subjects over 70 characters after this commit
  --check LIMITS  compare with a file of limits (tests/architecture/limits.txt), say what grew, exit 1 if anything did
  --lower LIMITS  write the limits that today's figures allow into the file; none is raised
  --list COUNT    the places that a count is made of, e.g. silent_defaults
"""
import argparse
import os
import re
import subprocess
import sys

sys.dont_write_bytecode = True
from source_tree import enums, functions, is_product, source_files, switches

MOST_COLUMNS = 110
MOST_FUNCTION_LINES = 60
MOST_FILE_LINES = 400
MOST_SUBJECT = 70
# A default that says so: it throws, reports, or answers with "nothing" or with the reason of a refusal.
LOUD = re.compile(r"\bthrow\b|\brequire\s*\(\s*false|\brefuse\w*\s*\(|\berror\s*\(|\bunreachable\b|\bbroken_promise\b"
                  r"|return\s+std::nullopt|return\s+fmt::format|return\s+std::unexpected|return\s+\w*[Uu]nsupported")


def places_of(files):
    """By count: the places that it is made of, as (room, text)."""
    known = enums(files)
    places = {name: [] for name in ("static_casts", "size_t_casts", "long_lines", "silent_defaults", "operator_switches",
                                    "files_naming_segments", "files_naming_lamb", "long_functions", "long_files")}
    for file in files:
        def add(name, line, words=""):
            places[name].append((file.room, f"{file.path}:{line}" + (f": {words}" if words else "")))
        for number, line in enumerate(file.code.split("\n"), 1):
            for cast in re.finditer(r"\bstatic_cast\s*<\s*([^>]*)", line):
                add("static_casts", number)
                if cast.group(1).strip() in ("std::size_t", "size_t"):
                    add("size_t_casts", number)
        for number, line in enumerate(file.lines, 1):
            if len(line) > MOST_COLUMNS:
                add("long_lines", number, f"{len(line)} columns")
        if len(file.lines) > MOST_FILE_LINES:
            add("long_files", 1, f"{len(file.lines)} lines")
        if is_product(file):
            if "segments" in file.text:
                add("files_naming_segments", 1)
            if "lamb" in re.sub(r"(?i)lambda", "", file.text).lower():
                add("files_naming_lamb", 1)
        for first, lines, name in functions(file):
            if lines > MOST_FUNCTION_LINES:
                add("long_functions", first, f"{name}, {lines} lines")
        over_kinds = []
        for switch in switches(file):
            enum = switch.enum(known)
            if enum == "OperatorKind":
                over_kinds.append(switch.line)
            if enum and switch.default is not None and not LOUD.search(switch.default):
                add("silent_defaults", switch.default_line, f"over {enum}")
        if over_kinds:
            add("operator_switches", over_kinds[0], f"{len(over_kinds)} over OperatorKind")
    return places


def pair_of(path):
    return path.rsplit(".", 1)[0]


def circles(files, unit_of):
    """Groups of units that include each other. With pair_of a unit is a .cpp (or .cu) and the header of its name."""
    units = {unit_of(file.path) for file in files}
    edges = {unit: set() for unit in units}
    for file in files:
        for path in file.includes():
            if unit_of(path) in units and unit_of(path) != unit_of(file.path):
                edges[unit_of(file.path)].add(unit_of(path))
    # Tarjan's strongly connected components, without recursion.
    index, low, on_stack, stack, found, counter = {}, {}, set(), [], [], 0
    for root in sorted(units):
        if root in index:
            continue
        work = [(root, iter(sorted(edges[root])))]
        index[root] = low[root] = counter
        counter += 1
        stack.append(root)
        on_stack.add(root)
        while work:
            unit, following = work[-1]
            for other in following:
                if other not in index:
                    index[other] = low[other] = counter
                    counter += 1
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(sorted(edges[other]))))
                    break
                if other in on_stack:
                    low[unit] = min(low[unit], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[unit])
                if low[unit] == index[unit]:
                    group = []
                    while True:
                        member = stack.pop()
                        on_stack.discard(member)
                        group.append(member)
                        if member == unit:
                            break
                    if len(group) > 1:
                        found.append((group[0].split("/")[0], " <-> ".join(sorted(group))))
    return found


def long_subjects(root, since):
    """Subjects over 70 characters of the commits after `since`; None where git does not know it (an archive, a shallow clone)."""
    try:
        log = subprocess.run(["git", "-C", root, "log", "--no-merges", "--format=%h %s", f"{since}..HEAD"],
                             capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return [("", line) for line in log.splitlines() if len(line.split(" ", 1)[1]) > MOST_SUBJECT]


def folders(files):
    sizes = {}
    for file in files:
        sizes[os.path.dirname(file.path)] = sizes.get(os.path.dirname(file.path), 0) + 1
    return sorted(sizes.items(), key=lambda item: (-item[1], item[0]))


def read_limits(path):
    """Lines `name limit reason`; `since` names the commit from which on subjects are counted."""
    limits = {}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            words = line.split("#", 1)[0].split(None, 2)
            if not words:
                continue
            if len(words) != 3:
                sys.exit(f"{path}:{number}: a limit is a name, a number and a reason")
            limits[words[0]] = (words[1], words[2].strip())
    return limits


def check(totals, limits):
    grew = 0
    for name, (limit, reason) in limits.items():
        if name == "since" or name.startswith("change_"):  # those are change_cost.py's
            continue
        if name not in totals:
            print(f"{name}: no such count")
            grew += 1
        elif totals[name] is None:
            print(f"{name}: not counted, git does not know the commit (remark)", file=sys.stderr)
        elif totals[name] > float(limit):
            print(f"{name}: {totals[name]}, the limit is {limit}: {reason}")
            grew += 1
        elif totals[name] < float(limit):
            print(f"{name}: {totals[name]}, the limit {limit} can be lowered (remark)", file=sys.stderr)
    return 1 if grew else 0


def lower(totals, path):
    with open(path, encoding="utf-8") as file:
        lines = file.readlines()
    for i, line in enumerate(lines):
        words = line.split(None, 2)
        if len(words) == 3 and totals.get(words[0]) is not None and totals[words[0]] < float(words[1]):
            lines[i] = f"{words[0]:28} {totals[words[0]]:>7} {words[2]}"
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(lines)
    return 0


def main():
    arguments = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1], add_help=True)
    arguments.add_argument("root", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    arguments.add_argument("--since")
    arguments.add_argument("--check")
    arguments.add_argument("--lower")
    arguments.add_argument("--list", dest="listed")
    options = arguments.parse_args()
    limit_file = options.check or options.lower
    limits = read_limits(limit_file) if limit_file else {}
    since = options.since or limits.get("since", (None,))[0]

    files = source_files(options.root)
    product = [file for file in files if is_product(file)]
    if not product:
        sys.exit(f"no source folders in {options.root}")
    places = places_of(files)
    places["circles"] = circles(product, pair_of)
    places["header_circles"] = circles(product, lambda path: path)
    places["long_subjects"] = long_subjects(options.root, since) if since else None
    rooms = sorted({file.room for file in product}) + ["bench", "tests"]

    def count(name, room):
        found = places[name]
        return None if found is None else sum(1 for r, _ in found if r == room)

    inside = {file.room for file in product}
    lines = {room: sum(len(file.lines) for file in files if file.room == room) for room in rooms}
    totals = {name: None if found is None else sum(1 for room, _ in found if room in inside or room == "")
              for name, found in places.items()}
    totals["lines"] = sum(lines[room] for room in inside)
    totals["files"] = len(product)
    totals["static_casts_per_1000_lines"] = round(1000 * totals["static_casts"] / totals["lines"], 1)
    totals["largest_folder"] = folders(product)[0][1]

    if options.listed:
        if options.listed not in places:
            sys.exit(f"--list takes one of {', '.join(sorted(places))}")
        for _, place in places[options.listed] or []:
            print(place)
        return 0
    if options.check:
        return check(totals, limits)
    if options.lower:
        return lower(totals, options.lower)

    columns = [("files", None), ("lines", None), ("static_casts", "casts"), ("size_t_casts", "size_t"), ("per_1000", "/1000"),
               ("long_lines", ">110"), ("silent_defaults", "default"), ("operator_switches", "kinds"),
               ("long_functions", ">60"), ("long_files", ">400"), ("circles", None), ("files_naming_segments", "segments"),
               ("files_naming_lamb", "lamb")]
    print(f"{'room':12}" + "".join(f"{short or name:>9}" for name, short in columns))
    for room in rooms + ["product"]:
        row = f"{room:12}"
        for name, _ in columns:
            if name == "lines":
                value = totals["lines"] if room == "product" else lines[room]
            elif name == "files":
                value = totals["files"] if room == "product" else sum(1 for file in files if file.room == room)
            elif name == "per_1000":
                casts = totals["static_casts"] if room == "product" else count("static_casts", room)
                size = totals["lines"] if room == "product" else lines[room]
                value = f"{1000 * casts / size:.1f}" if size else "-"
            else:
                value = totals[name] if room == "product" else count(name, room)
            row += f"{value:>9}"
        print(row)
    print("\nlargest folders: " + ", ".join(f"{folder} {size}" for folder, size in folders(files)[:6]))
    if since:
        found = totals["long_subjects"]
        print(f"commit subjects over {MOST_SUBJECT} characters since {since}: {'unknown' if found is None else found}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
