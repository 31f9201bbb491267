#!/usr/bin/env python3
"""Usage: check_tutorial.py TOOLS PAGE.md [--update | --can-fail]

Every command of the page's ```console fences prints what the page shows, in one folder from top to bottom, with the tools
of the folder TOOLS; `./run smsim ...` is smsim in the page's own folder. In ```console measured fences the figures are of this
machine: words and their order are compared. A line ... stands for any lines, and what begins with error: fails.
--update writes what is printed into the page, but for what has such a line; --can-fail changes one shown digit first, and fails when nobody notices.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^```console( measured)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)

FEWEST = {"README.md": 8}  # commands of a page; 10 of others


def runs_of(body):
    """Commands with the output shown below each; lines that begin with "> " go on with a command."""
    runs = []
    for line in body.splitlines():
        if line.startswith("$ "):
            runs.append(([line[2:]], []))
        elif line.startswith("> ") and not runs[-1][1]:
            runs[-1][0].append(line[2:])
        else:
            runs[-1][1].append(line)
    return runs


def comparable(lines, is_measured):
    text = "\n".join(line.rstrip() for line in lines).strip("\n")
    text = re.sub(r"; \d[\d.]* m?s(?=; the first|\n|$)", "; TIME", text)  # what a search took
    if is_measured:
        text = re.sub(r"[-+]?\d[\d.,]*(e[-+]?\d+)?( (us|ms|s|min)\b)?|#+", "#", text)
        text = re.sub(r"[ \t]+", " ", text)
        text = re.sub(r"(# )+#", "#", text)
    return text


def holds(printed, shown, is_measured):
    """Between lines ... what is shown is printed, in its order, and from the beginning to the end without them."""
    if "..." not in shown:
        return comparable(printed, is_measured) == comparable(shown, is_measured)
    rest = "\n" + comparable(printed, is_measured) + "\n"
    for part in "\n".join(shown).split("..."):
        part = comparable(part.splitlines(), is_measured)
        if part and "\n" + part + "\n" not in rest:
            return False
        rest = rest.partition("\n" + part + "\n")[2] if part else rest
        rest = "\n" + rest.lstrip("\n")
    return True


def main():
    tools, page = os.path.abspath(sys.argv[1]), pathlib.Path(sys.argv[2])
    mode = sys.argv[3] if len(sys.argv) > 3 else ""
    text, failures, commands = page.read_text(), [], 0
    renewed, copied, spoilt = "", 0, mode != "--can-fail"
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, PATH=tools + os.pathsep + os.environ["PATH"], LC_ALL="C.UTF-8")
        for fence in FENCE.finditer(text):
            written = ""
            for command, shown in runs_of(fence.group(2)):
                commands += 1
                if mode == "--can-fail" and spoilt:
                    break
                is_of_the_page = command[0].startswith("./run ")
                called = [command[0].removeprefix("./run "), *command[1:]]
                run = subprocess.run(["bash", "-c", "\n".join(called)], cwd=page.resolve().parent if is_of_the_page else folder, env=environment, timeout=600,
                                     stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if not spoilt and not fence.group(1) and any(re.search(r"\d", line) for line in shown):
                    shown = re.sub(r"\d", lambda d: str((int(d.group()) + 1) % 10), "\n".join(shown), count=1).split("\n")
                    spoilt = True
                printed = run.stdout.splitlines()
                if run.returncode != 0 and not (shown and shown[0].startswith("error: ")):
                    failures.append(f"$ {command[0]}\n  exit code {run.returncode}: {run.stdout[-400:]}")
                elif not holds(printed, shown, bool(fence.group(1))):
                    failures.append(f"$ {command[0]}\n-- the page\n" + "\n".join(shown) + "\n-- printed\n" + run.stdout)
                written += "\n> ".join(["$ " + command[0], *command[1:]]) + "\n"
                written += "".join(line.rstrip() + "\n" for line in (shown if "..." in shown else printed))
            renewed += text[copied : fence.start(2)] + written
            copied = fence.end(2)
    if mode == "--update":
        page.write_text(renewed + text[copied:])
        print(f"{page}: {commands} commands, {len(failures)} changed")
    elif mode == "--can-fail":
        sys.exit(0 if failures else "a wrong digit was not noticed")
    elif failures or commands < FEWEST.get(page.name, 10):
        sys.exit("\n\n".join(failures) + f"\n{len(failures)} of {commands} commands print something else: "
                 f"tests/docs/check_tutorial.py {sys.argv[1]} {page} --update")
    else:
        print(f"{commands} commands print what {page.name} shows")


if __name__ == "__main__":
    main()
