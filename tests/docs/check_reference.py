#!/usr/bin/env python3
"""Usage: check_reference.py TOOLS PAGE.md [--update | --can-fail]

docs/reference.md is what the tools themselves say: the text of every command's --help, the options that its reader knows,
and the keys that the reader of each table of a file knows. --update writes it; --can-fail drops an option first, and fails
when nobody notices.
"""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TOOLS = ("smsim", "smplan", "smexec")
UNKNOWN = "no-such-key"
# Tables of a scenario or a plan. The key that is none is asked for in each; readers name those that there are.
TABLES = ["", "model", "cluster", "plan", "training", "job", "job.checkpoint", "job.failures", "job.spot", "job.evaluation",
          "job.upload", "job.stragglers", "job.elastic", "job.warm_pool", "job.bill", "job.simulation"]
SCENARIO = {"": "version = 1", "model": 'name = "gpt2"', "cluster": 'instance = "p4d.24xlarge"', "job": "steps = 10"}


def answer(command, folder):
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    return run.stdout


def errors(command, folder):
    return json.loads(answer([*command, "--json"], folder))["errors"]


def commands_of(tools, tool, folder):
    """The names of the commands, as bash's completion of the tool has them; "" is the tool without one."""
    found = re.findall(r"^        ([a-z'-]+)\) options=", answer([f"{tools}/{tool}", "--generate", "bash"], folder), re.MULTILINE)
    return [name.replace("''", "") for name in found]


def options(tools, tool, command, folder):
    for error in errors([f"{tools}/{tool}", *([command] if command else []), "--no-such-option"], folder):
        if error["key"] == "--no-such-option":
            return [option.replace("=VALUE", " VALUE") for option in error.get("allowed", [])]
    return []


def keys(tools, folder):
    """Known keys by table."""
    text = ""
    for table in TABLES:
        text += (f"[{table}]\n" if table else "") + SCENARIO.get(table, "") + f'\n{UNKNOWN} = 1\n'
    (pathlib.Path(folder) / "every_table.toml").write_text(text)
    known = {}
    for error in errors([f"{tools}/smsim", "job", "every_table.toml"], folder):
        table = error["key"].removesuffix(UNKNOWN).removesuffix(".")
        if error["key"].endswith(UNKNOWN) and error.get("allowed"):
            known[table] = error["allowed"]
    return known


def page(tools):
    text = ("# Reference\n\nWritten by the tools themselves (`tests/docs/check_reference.py build docs/reference.md --update`; a test "
            "holds it to them).\nWhat keys and files mean: [formats.md](formats.md). Exit codes: 0 good, 1 internal failure, 2 wrong "
            "input, 3 no plan or does not\nfit, 4 machine failure.\n")
    with tempfile.TemporaryDirectory() as folder:
        for tool in TOOLS:
            for command in commands_of(tools, tool, folder):
                name = f"{tool} {command}".strip()
                text += f"\n## {name}\n\nOptions: " + ", ".join(f"`{o}`" for o in options(tools, tool, command, folder)) + "\n"
                help_text = answer([f"{tools}/{tool}", *([command] if command else []), "--help"], folder).rstrip()
                text += f"\n```\n{help_text}\n```\n"
        text += "\n## Keys of scenarios and plans\n\n| table | keys |\n|---|---|\n"
        for table, names in keys(tools, folder).items():
            text += f"| {f'`[{table}]`' if table else 'top'} | " + ", ".join(f"`{name}`" for name in names) + " |\n"
    return text


def main():
    tools, path = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    mode = sys.argv[3] if len(sys.argv) > 3 else ""
    now = page(tools)
    if mode == "--update":
        path.write_text(now)
        return
    shown = path.read_text()
    if mode == "--can-fail":
        shown = shown.replace("`--trace VALUE`, ", "", 1)
        sys.exit(0 if shown != now else "a missing option was not noticed")
    if shown != now:
        sys.exit(f"{path} is not what the tools say: tests/docs/check_reference.py {tools} {path} --update")


if __name__ == "__main__":
    main()
