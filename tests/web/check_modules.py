#!/usr/bin/env python3
"""Usage: check_modules.py ROOT [--can-fail]. The page's modules are whole: esbuild bundles them without a warning (syntax, names that
are imported and not exported), and every element that a module looks for by its id is in index.html.

--can-fail: the same of a copy with one mistake of each kind, which must be found. Exit code 77 where esbuild or D3 is missing."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

MODULES = "/usr/share/nodejs"
MISTAKES = {
    "syntax": ("main.js", "async function plan() {", "async function plan( {"),
    "an import without an export": ("main.js", 'import { layout, schedule } from "./figures.js";', 'import { layouts as layout, schedule } from "./figures.js";'),
    "an id that is nowhere": ("index.html", 'id="account"', 'id="acount"'),
}


def findings(web):
    """What is wrong with the page below `web`, as lines."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ("smsim.js.txt", "worker.js.txt"):
            (pathlib.Path(folder) / name).write_text("")
        done = subprocess.run(
            ["esbuild", str(web / "page" / "main.js"), "--bundle", "--format=iife", "--target=es2022", "--loader:.txt=text", "--log-level=warning",
             f"--alias:smsim-glue={folder}/smsim.js.txt", f"--alias:smsim-worker={folder}/worker.js.txt", f"--outfile={folder}/page.js"],
            capture_output=True, text=True, check=False, env={**os.environ, "NODE_PATH": os.environ.get("NODE_PATH", MODULES)})
        found += (done.stderr.splitlines() if done.returncode != 0 or done.stderr.strip() else [])
        done = subprocess.run(["esbuild", str(web / "page" / "worker.js"), f"--outfile={folder}/worker.js", "--log-level=warning"],
                              capture_output=True, text=True, check=False)
        found += done.stderr.splitlines()
    ids = set(re.findall(r'\bid="([^"]+)"', (web / "page" / "index.html").read_text()))
    for module in sorted((web / "page").glob("*.js")):
        text = module.read_text()
        for wanted in re.findall(r'\b(?:at|field|getElementById)\("([^"]+)"\)', text):
            if wanted not in ids:
                found.append(f"{module.name}: index.html has no element with the id {wanted}")
    return found


def main():
    web = pathlib.Path(sys.argv[1]) / "web"
    if not shutil.which("esbuild"):
        print("skipped: esbuild is not installed")
        sys.exit(77)
    if not os.path.isdir(f"{os.environ.get('NODE_PATH', MODULES)}/d3-selection"):
        print("skipped: D3 (node-d3) is not installed")
        sys.exit(77)
    if "--can-fail" not in sys.argv:
        found = findings(web)
        print("\n".join(found) or "the page's modules are whole")
        sys.exit(1 if found else 0)
    for kind, (name, right, wrong) in MISTAKES.items():
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / "web"
            shutil.copytree(web, copy)
            file = copy / "page" / name
            text = file.read_text()
            assert right in text, f"{name} has no {right!r} to be spoilt"
            file.write_text(text.replace(right, wrong))
            found = findings(copy)
            assert found, f"not found: {kind}"
            print(f"found: {kind}: {found[0]}")


if __name__ == "__main__":
    main()
