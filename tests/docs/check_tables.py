#!/usr/bin/env python3
"""Usage: check_tables.py SMSIM ROOT [--update | --can-fail]

Every table of docs/*.md between `<!-- table: smsim ARGUMENTS -->` and `<!-- end of table -->` is what that command
prints, run in ROOT; `<!-- text: ...` the same in a fence. --update writes the tables anew; --can-fail changes a digit first, and fails when nobody notices.
"""
import pathlib
import re
import shlex
import subprocess
import sys

BLOCK = re.compile(r"<!-- (table|text): smsim ([^\n]*) -->\n(.*?)<!-- end of table -->", re.DOTALL)


def printed(smsim, root, arguments):
    run = subprocess.run([smsim, *shlex.split(arguments)], cwd=root, capture_output=True, text=True, timeout=300)
    if run.returncode != 0:
        sys.exit(f"smsim {arguments}: exit code {run.returncode}\n{run.stderr}")
    return run.stdout


def main():
    smsim, root = sys.argv[1], pathlib.Path(sys.argv[2])
    mode = sys.argv[3] if len(sys.argv) > 3 else ""
    tables, stale = 0, []
    for doc in sorted((root / "docs").glob("*.md")):
        text = doc.read_text()
        renewed, copied = "", 0
        for block in BLOCK.finditer(text):
            tables += 1
            kind, arguments, body = block.groups()
            now = printed(smsim, root, arguments)
            if kind == "text":
                now = f"```\n{now}```\n"
            if mode == "--can-fail":
                body = re.sub(r"\d", lambda digit: str((int(digit.group()) + 1) % 10), body, count=1)
            if body != now:
                stale.append(f"{doc.relative_to(root)}: smsim {arguments}")
            renewed += text[copied : block.start(3)] + now
            copied = block.end(3)
        renewed += text[copied:]
        if mode == "--update" and renewed != text:
            doc.write_text(renewed)
    if tables == 0:
        sys.exit("no table was found: the check would say nothing")
    if mode == "--update":
        return
    if mode == "--can-fail":
        sys.exit(0 if len(stale) == tables else "a changed digit was not noticed")
    for line in stale:
        print("differs from what the command prints:", line)
    if stale:
        sys.exit("renew them: tests/docs/check_tables.py SMSIM ROOT --update")
    print(f"{tables} tables are what their commands print")


main()
