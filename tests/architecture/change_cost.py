#!/usr/bin/env python3
"""Where a change goes, measured: for everything of a kind that is there today, the product files that name it.

Adding another of the kind touches about as many: its own file, and every file that names its like.

usage: change_cost.py [ROOT] [--check LIMITS] [--list KIND]
  ROOT            a checkout (default: the one this file lies in)
  --check LIMITS  compare with the lines change_KIND of a file of limits; exit 1 and name the files where more are touched
  --list KIND     the files of every member of a kind, e.g. pipeline_schedule
"""
import argparse
import os
import re
import sys

sys.dont_write_bytecode = True
from source_tree import enums, is_product, source_files, switches
from counts import read_limits

COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)


class Tree:
    def __init__(self, root):
        self.root = root
        self.files = {file.path: file for file in source_files(root) if is_product(file)}
        # With their literals: what a program does may depend on a name in quotes.
        self.words = {path: COMMENT.sub(lambda m: m.group(1) or " ", file.text) for path, file in self.files.items()}

        self.includes = {path: set(file.includes()) for path, file in self.files.items()}

    def naming(self, word, pattern):
        """The files where the pattern is found; all of them have the word, which is looked for first because that is fast."""
        found = re.compile(pattern)
        return [path for path, words in self.words.items() if word in words and found.search(words)]

    def quoting(self, name):
        """The files with a literal that is the name and nothing else."""
        return [path for path, words in self.words.items() if f'"{name}"' in words]

    def including(self, header):
        return [path for path, included in self.includes.items() if header in included]

    def names_in(self, path, pattern):
        return sorted(set(re.findall(pattern, self.words.get(path, ""))))

    def folder(self, prefix, ending=".h"):
        return sorted(path for path in self.files if path.startswith(prefix) and path.endswith(ending))


def data_files(root, folder):
    path = os.path.join(root, folder)
    return sorted(name[:-5] for name in os.listdir(path) if name.endswith(".toml")) if os.path.isdir(path) else []


def instance_types(tree):
    """Its profile, and code that has its name as a literal of its own (an example inside a help text does not count)."""
    return {name: [f"hardware_profiles/{name}.toml"] + tree.quoting(name)
            for name in data_files(tree.root, "hardware_profiles") if name != "local-cpu"}


def pipeline_schedules(tree):
    """Its file, its declaration and its line in the registry."""
    return {name: tree.naming(name, rf"\b{name}\s*\(\s*\)")
            for name in tree.names_in("schedule/pipeline/registry.cpp", r"\b(\w+_schedule)\(\)")}


def schedule_names(tree):
    """Files outside of schedule/pipeline whose behaviour could depend on a schedule's name."""
    names = set()
    for path in tree.folder("schedule/pipeline/", ".cpp"):
        names.update(re.findall(r'schedule\.name = "([^"]+)"', tree.words[path]))
    return {name: [path for path in tree.quoting(name) if not path.startswith("schedule/pipeline/")]
            for name in sorted(names)}


def collective_algorithms(tree):
    """Its file, its declaration, its lines in registry and selector, and where it is priced or built upon."""
    found = {}
    for constructor in tree.names_in("schedule/collective/registry.cpp", r"\b(\w+_algorithm)\(\)"):
        name = constructor[:-len("_algorithm")].replace("_", "-")
        found[name] = sorted(set(tree.naming(constructor, rf"\b{constructor}\s*\(")) |
                             {path for path in tree.quoting(name) if path.startswith(("schedule/", "sim/"))})
    return found


def model_builders(tree):
    """Its pair and the description that calls it."""
    names = {name for path in tree.folder("model/builder/") for name in tree.names_in(path, r"\bModelGraph (build_\w+)\(")}
    return {name: tree.naming(name, rf"\b{name}\s*\(") for name in sorted(names)}


def model_readers(tree):
    """Its pair and what calls it."""
    headers = [path for path in tree.folder("model/reader/") if os.path.basename(path) not in ("bounds.h",)
               and (path.count("/") == 2 or path.endswith("onnx/onnx.h"))]
    return {path: [path] + tree.including(path) for path in headers}


def graph_readers(tree):
    """Of graphs to be placed: its pair and the command that calls it."""
    return {path: [path] + tree.including(path) for path in tree.folder("partition/reader/")
            if not path.endswith("components.h")}


def export_targets(tree):
    """Its file, its declaration and its line in the list."""
    return {name: tree.naming(name, rf"\b{name}\b") for name in tree.names_in("interop/targets.h", r"\b(write_\w+)\(")}


def operator_dispatches(tree):
    """What every new kind meets: the files that switch over the kinds."""
    known = enums(tree.files.values())
    return {"OperatorKind": [path for path, file in tree.files.items()
                             if "OperatorKind::" in file.text and any(switch.enum(known) == "OperatorKind" for switch in switches(file))]}


def operator_kinds(tree):
    """Every file that names the kind or switches over the kinds: a default hides a kind there, it does not spare the file."""
    kinds = enums(tree.files.values()).get("OperatorKind", ())
    met = set(operator_dispatches(tree)["OperatorKind"]) | {"model/operator.h"}
    return {kind: sorted(set(tree.naming(f"OperatorKind::{kind}", rf"\bOperatorKind::{kind}\b")) | met) for kind in sorted(kinds)}


def parallel_axes(tree):
    """Every file that names the axis."""
    axes = {"context": r"\bcontext_parallel|layout\.context\b|GroupKind::context\b",
            "expert": r"\bexpert_parallel|layout\.expert\b|GroupKind::expert\w*",
            "segments": r"segments"}
    return {axis: tree.naming(axis, pattern) for axis, pattern in axes.items()}


def backends(tree):
    """Files outside its folder that include one of its headers; the commands choose, the rest should not know."""
    return {"cuda": [path for path, file in tree.files.items() if not path.startswith("exec/cuda/")
                     and any(name.startswith("exec/cuda/") for name in tree.includes[path])]}


def cost_mechanisms(tree):
    """Files beyond sim/cost that include one of its headers."""
    return {path: [user for user in tree.including(path) if not user.startswith("sim/cost/")]
            for path in tree.folder("sim/cost/")}


KINDS = {
    "instance_type": instance_types,
    "pipeline_schedule": pipeline_schedules,
    "schedule_name": schedule_names,
    "collective_algorithm": collective_algorithms,
    "model_builder": model_builders,
    "model_reader": model_readers,
    "graph_reader": graph_readers,
    "export_target": export_targets,
    "operator_kind": operator_kinds,
    "operator_dispatch": operator_dispatches,
    "parallel_axis": parallel_axes,
    "backend": backends,
    "cost_mechanism": cost_mechanisms,
}


def main():
    arguments = argparse.ArgumentParser(usage=__doc__.split("usage: ")[1])
    arguments.add_argument("root", nargs="?", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
    arguments.add_argument("--check")
    arguments.add_argument("--list", dest="listed")
    options = arguments.parse_args()
    tree = Tree(options.root)
    if not tree.files:
        sys.exit(f"no source folders in {options.root}")
    limits = read_limits(options.check) if options.check else {}

    status = 0
    if not options.check and not options.listed:
        print(f"{'kind':22}{'members':>8}{'median':>8}{'most':>6}  the most expensive")
    for kind, measure in KINDS.items():
        members = {name: sorted(set(files)) for name, files in measure(tree).items()}
        sizes = sorted(len(files) for files in members.values())
        if options.check:
            limit, reason = limits.get(f"change_{kind}", (None, ""))
            if limit is None or not sizes:
                # A kind that is not found any more is measured no longer: say so instead of passing.
                print(f"change_{kind}: {'no limit' if limit is None else 'nothing of this kind is found'}")
                status = 1
            for name, files in members.items():
                if limit is not None and len(files) > int(limit):
                    print(f"change_{kind}: {name} is named in {len(files)} files, the limit is {limit}: {reason}")
                    print("".join(f"  {path}\n" for path in files), end="")
                    status = 1
        elif options.listed:
            if kind == options.listed:
                for name, files in members.items():
                    print(f"{name} ({len(files)}): {' '.join(files)}")
        elif sizes:
            most = max(members, key=lambda name: len(members[name]))
            print(f"{kind:22}{len(sizes):>8}{sizes[len(sizes) // 2]:>8}{sizes[-1]:>6}  {most}")
    return status


if __name__ == "__main__":
    sys.exit(main())
