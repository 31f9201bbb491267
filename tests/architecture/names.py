#!/usr/bin/env python3
"""Usage: names.py ROOT [ALLOWED]. Code that names a training framework, or a group of published measurements, answers to it.

Facts of frameworks stand in framework_profiles/, what published rows call them in validation/. Everywhere else the names
may stand in comments, and where ALLOWED (tests/architecture/names_allowed.txt beside this file by default) says why:
`PATH kinds reason`, kinds = identifiers, strings or both. The words are not listed here: they are those of the profiles'
names, of the phrases in validation/published_framework.cpp and of the groups of tests/validation/published/scores.csv.
"""
import csv
import fnmatch
import os
import re
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from source_tree import is_product, source_files

# Words of profile names and phrases that are ordinary words of the field, or of the language.
ORDINARY = {
    "accelerate", "baseline", "bridge", "bubble", "compile", "compiled", "core", "ddp", "engine", "face", "flash", "flashattention", "fused",
    "gpt", "graph", "hugging", "kernel", "kernels", "lightning", "lit", "llm", "lm", "neox", "paddle", "smp", "torch", "traced", "transformer",
    "transformers", "zero",
}
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"([^()\s\\]*)\((.*?)\)\1"|"((?:\\.|[^"\\\n])*)"|(?<![0-9A-Za-z_])\'(?:\\.|[^\'\\\n])+\'', re.DOTALL)
PART = re.compile(r"[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])|\d+")


def words_of(text):
    """Lower-case words, and the parts of snake_case and CamelCase ones."""
    found = set()
    for word in re.findall(r"[A-Za-z][A-Za-z0-9]*", text):
        found.add(word.lower())
        found.update(part.lower() for part in PART.findall(word))
    return found


def forbidden_words(root):
    words = set()
    folder = os.path.join(root, "framework_profiles")
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if name.endswith(".toml"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                for profile in re.findall(r'^name = "([^"]*)"', file.read(), re.MULTILINE):
                    words.update(re.findall(r"[a-z][a-z]+", profile))
    table = os.path.join(root, "validation", "published_framework.cpp")
    if os.path.exists(table):
        with open(table, encoding="utf-8") as file:
            for phrases in re.findall(r'\{\{("[^}]*)\}', file.read()):
                words.update(re.findall(r"[a-z][a-z0-9]+", phrases))
    return {word for word in words if word not in ORDINARY and not word.isdigit()}


def forbidden_groups(root):
    path = os.path.join(root, "tests", "validation", "published", "scores.csv")
    if not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8") as file:
        # A group without an underscore is an ordinary word; zero_bubble is also what its schedules are called.
        return {row["group"] for row in csv.DictReader(file) if "_" in row["group"]} - {"zero_bubble"}


def allowed_places(path):
    places = []
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            line = line.split("#")[0].strip()
            if not line:
                continue
            parts = line.split(None, 2)
            if len(parts) < 3 or parts[1] not in ("identifiers", "strings", "both"):
                sys.exit(f"{path}:{number}: write PATH, identifiers|strings|both, and the reason")
            places.append((parts[0], parts[1]))
    return places


def breaches(root, allowed_file):
    words, groups, allowed = forbidden_words(root), forbidden_groups(root), allowed_places(allowed_file)
    used = set()
    for file in source_files(root):
        if not is_product(file) or file.room == "validation":
            continue
        position, pieces = 0, []
        for token in TOKEN.finditer(file.text):
            pieces.append(("identifiers", position, file.text[position:token.start()]))
            literal = token.group(2) if token.group(2) is not None else token.group(3)
            if literal is not None:
                pieces.append(("strings", token.start(), literal))
            position = token.end()
        pieces.append(("identifiers", position, file.text[position:]))
        for kind, begin, text in pieces:
            for number, line in enumerate(text.split("\n"), file.text.count("\n", 0, begin) + 1):
                if kind == "identifiers" and re.match(r"\s*#\s*include", line):
                    continue
                found = sorted((words_of(line) & words) | {group for group in groups if group in line})
                if not found:
                    continue
                place = next((p for p in allowed if fnmatch.fnmatch(file.path, p[0]) and p[1] in (kind, "both")), None)
                if place is None:
                    yield f"{file.path}:{number}: {kind} name {', '.join(found)}"
                else:
                    used.add(place)
    for place in allowed:
        if place not in used:
            yield f"names_allowed.txt: {place[0]} {place[1]} allows nothing: take it out"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    here = os.path.dirname(os.path.abspath(__file__))
    found = list(breaches(sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else os.path.join(here, "names_allowed.txt")))
    if not forbidden_words(sys.argv[1]):
        sys.exit("no framework profiles to take names from")
    print("\n".join(found), end="\n" if found else "")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
