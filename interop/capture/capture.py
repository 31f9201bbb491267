#!/usr/bin/env python3
"""Writes what a training script starts as JSON, for `smplan import FILE --from megatron`.

    python3 interop/capture/capture.py script train_gpt.sh [ARGUMENTS...] > run.json
    python3 interop/capture/capture.py arguments -- torchrun --nnodes 2 pretrain_gpt.py --num-layers 96 ... > run.json

`script` runs the shell script with launchers and python replaced by commands that note their arguments and
do nothing: variables, defaults and conditions are the shell's own. Everything else in the script runs as it
stands (mkdir, cd, exports). `arguments` notes the arguments after -- themselves: put it before the command
in a script that must not be run.

The answer: {"script": the program, "launcher": [its arguments], "arguments": [the program's], "others": how
many more commands the script would have started}. Exit status 2 where no program of Megatron-LM was started.
"""
import json
import os
import shlex
import stat
import subprocess
import sys
import tempfile

LAUNCHERS = ("torchrun", "python", "python3", "srun", "mpirun", "mpiexec", "deepspeed", "accelerate", "nsys", "sbatch",
             "docker", "enroot", "uv", "pip", "pip3", "git", "wget", "curl", "nvidia-smi")

STUB = """#!{python}
import json, os, sys
text = [sys.stdin.read()] if sys.argv[0].endswith("sbatch") and not sys.stdin.isatty() else []
with open(os.environ["SMSIM_CAPTURE"], "a") as out:
    out.write(json.dumps([os.path.basename(sys.argv[0])] + sys.argv[1:] + text) + "\\n")
"""


def words_of(word):
    """The words of a command inside a word: `bash -c "... python pretrain_gpt.py ..."`, a batch script."""
    if ".py " not in word:
        return [word]
    try:
        parts = shlex.split(word, comments=True)
    except ValueError:
        parts = word.split()
    if parts == [word]:
        return word.split()
    return [inner for part in parts for inner in words_of(part)]


def split(command):
    """Launcher and arguments of the first .py program that a command starts; None where there is none."""
    words = [inner for word in command for inner in words_of(word)]
    for i, word in enumerate(words):
        if word.endswith(".py") and not word.startswith("-"):
            return {"script": word, "launcher": words[1:i], "arguments": words[i + 1:]}
    if "-m" in words[:-1] and words[0] != "pip":
        i = words.index("-m") + 1
        return {"script": words[i], "launcher": words[1:i - 1], "arguments": words[i + 1:]}
    return None


def run_script(script, arguments):
    with tempfile.TemporaryDirectory() as folder:
        notes = os.path.join(folder, "commands")
        for name in LAUNCHERS:
            path = os.path.join(folder, name)
            with open(path, "w") as file:
                file.write(STUB.format(python=sys.executable))
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        environment = dict(os.environ, PATH=folder + os.pathsep + os.environ["PATH"], SMSIM_CAPTURE=notes)
        done = subprocess.run(["bash", script, *arguments], env=environment, stdin=subprocess.DEVNULL,
                              stdout=sys.stderr, stderr=sys.stderr)
        if done.returncode != 0:
            print(f"capture: {script} ended with {done.returncode}", file=sys.stderr)
        if not os.path.exists(notes):
            return []
        with open(notes) as file:
            return [json.loads(line) for line in file]


def main():
    words = sys.argv[1:]
    if len(words) >= 2 and words[0] == "script":
        commands = run_script(words[1], words[2:])
    elif len(words) >= 3 and words[0] == "arguments" and words[1] == "--":
        commands = [words[2:]]
        if not any(word.endswith(".py") for word in commands[0]):
            commands = [["python"] + commands[0]]
    else:
        print(__doc__, file=sys.stderr)
        return 2
    programs = [found for found in map(split, commands) if found and any(a.startswith("--") for a in found["arguments"])]
    if not programs:
        print(f"capture: none of the {len(commands)} commands starts a program with arguments: "
              f"{[c[:3] for c in commands][:5]}", file=sys.stderr)
        return 2
    # The one with the most arguments trains; others prepare.
    best = max(programs, key=lambda found: len(found["arguments"]))
    print(json.dumps(dict(best, others=len(commands) - 1), indent=1))
    return 0


sys.exit(main())
