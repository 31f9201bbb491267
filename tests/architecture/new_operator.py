#!/usr/bin/env python3
"""Usage: new_operator.py ROOT [FILE...]. What happens when somebody adds an OperatorKind and nothing else?

Puts an enumerator into a copy of model/operator.h and compiles, syntax only, every file that switches over OperatorKind
(counts.py, operator_switches), or the files given. Every switch must ask for the missing arm: builds treat that warning as
an error. Prints the places that do; exits 1 and names the files in which fewer do than there are switches.
"""

import os
import re
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
from counts import places_of
from source_tree import is_product, source_files

ENUM = "enum class OperatorKind {"
MISSING = re.compile(r"^(\S+?):(\d+):\d+: warning: enumeration value .conjured_operator. not handled", re.MULTILINE)
EIGEN = "/usr/include/eigen3"


def switches(root):
    """File: number of switches over OperatorKind."""
    files = [file for file in source_files(root) if is_product(file)]
    return {place.split(":")[0]: int(place.split(": ")[1].split()[0]) for _, place in places_of(files)["operator_switches"]}


def missing_arms(compiler, root, shadow, path):
    """Where the compiler asks for an arm, as "file:line"."""
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wswitch", f"-I{shadow}", f"-I{root}", "-isystem", EIGEN]
    command += ["-x", "c++", os.path.join(root, path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    if done.returncode != 0:
        sys.exit(f"{path} does not compile:\n{done.stderr[:2000]}")
    return {f"{os.path.relpath(os.path.join(root, file), root)}:{line}" for file, line in MISSING.findall(done.stderr)}


def main():
    root = os.path.abspath(sys.argv[1])
    with open(os.path.join(root, "model/operator.h"), encoding="utf-8") as header:
        text = header.read()
    if text.count(ENUM) != 1:
        sys.exit(f"model/operator.h: one line `{ENUM}` is expected")
    expected = {path: 1 for path in sys.argv[2:]} or switches(root)
    if not expected:
        sys.exit("no switch over OperatorKind was found")
    with tempfile.TemporaryDirectory() as shadow:
        os.mkdir(os.path.join(shadow, "model"))
        with open(os.path.join(shadow, "model/operator.h"), "w", encoding="utf-8") as header:
            header.write(text.replace(ENUM, ENUM + " conjured_operator,"))
        found = set()
        for path in expected:
            found |= missing_arms(os.environ.get("CXX", "c++"), root, shadow, path)
    silent = [path for path, count in expected.items() if sum(place.startswith(path + ":") for place in found) < count]
    for place in sorted(found):
        print(f"{place}: asks for the new operator")
    for path in silent:
        print(f"{path}: a switch over OperatorKind is silent about a new operator: take its default away")
    return 1 if silent else 0


if __name__ == "__main__":
    sys.exit(main())
