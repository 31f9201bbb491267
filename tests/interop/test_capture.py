#!/usr/bin/env python3
"""interop/capture notes what a script starts, with the shell's own variables, and runs none of it."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

CAPTURE = os.path.join(sys.argv.pop(1), "interop", "capture", "capture.py")

SCRIPT = """#!/bin/bash
set -eu
GPUS=${GPUS:-8}
NODES=$((2 * 2))
MODEL=(--num-layers 96 --hidden-size "$((128 * 96))")
if [ "${FP8:-0}" = 1 ]; then MODEL+=(--fp8-format hybrid); fi
python prepare.py --quiet
torchrun --nproc_per_node $GPUS --nnodes ${NODES} pretrain_gpt.py "${MODEL[@]}" \\
    --split "99, 1"
"""


def capture(*words, **environment):
    done = subprocess.run([sys.executable, CAPTURE, *words], capture_output=True, text=True,
                          env=dict(os.environ, **environment))
    return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr


class Capture(unittest.TestCase):
    def test_script(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train.sh")
            with open(path, "w") as file:
                file.write(SCRIPT)
            status, run = capture("script", path, FP8="1", GPUS="4")
            self.assertEqual(status, 0, run)
            self.assertEqual(run["script"], "pretrain_gpt.py")
            self.assertEqual(run["launcher"], ["--nproc_per_node", "4", "--nnodes", "4"])
            self.assertEqual(run["arguments"], ["--num-layers", "96", "--hidden-size", "12288", "--fp8-format", "hybrid",
                                                "--split", "99, 1"])
            self.assertEqual(run["others"], 1)
            with open(path, "w") as file:
                file.write("echo nothing\n")
            self.assertEqual(capture("script", path)[0], 2)

    def test_batch_job(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "submit.sh")
            with open(path, "w") as file:
                file.write('A="--num-layers 2"\nsbatch <<EOF\n#!/bin/bash\nsrun bash -c "python /m/pretrain_gpt.py ${A}"\nEOF\n')
            status, run = capture("script", path)
            self.assertEqual(status, 0, run)
            self.assertEqual(run["script"], "/m/pretrain_gpt.py")
            self.assertEqual(run["arguments"], ["--num-layers", "2"])

    def test_arguments(self):
        status, run = capture("arguments", "--", "torchrun", "--nnodes", "2", "pretrain_gpt.py", "--bf16")
        self.assertEqual(status, 0, run)
        self.assertEqual((run["launcher"], run["arguments"]), (["--nnodes", "2"], ["--bf16"]))
        self.assertEqual(capture("nothing")[0], 2)


unittest.main()
