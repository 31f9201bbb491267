#!/usr/bin/env python3
"""interop/capture notes what a script starts, with the shell's own variables, and runs none of it."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

FOLDER = os.path.join(sys.argv.pop(1), "interop", "capture")
CAPTURE, ESTIMATOR = os.path.join(FOLDER, "capture.py"), os.path.join(FOLDER, "estimator.py")

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


CELLS = ["""%pip install sagemaker
import boto3, subprocess
from sagemaker.pytorch import PyTorch
account = boto3.client("sts").get_caller_identity()["Account"]
subprocess.run(["touch", "{mark}"])
import os
os.system("touch {mark}")
open("{mark}", "w").write("no")
""", """if large:
    degree = 16
else:
    degree = 8
!aws s3 cp a \\
    b
options = {"pipeline_parallel_degree": 2}
options.update(microbatches=4)
raise ValueError("a cell that fails")
""", """smp = {"enabled": True, "parameters": {**options, "sharded_data_parallel_degree": degree}}
estimator = PyTorch("train.py", role=role, instance_type="ml.p4d.24xlarge", instance_count=2 * 2,
                    output_path=f"s3://{account}/x", hyperparameters={"lr": 1e-4, "bucket": f"s3://{account}"},
                    distribution={"smdistributed": {"modelparallel": smp}})
estimator.fit()
"""]


def estimator(cells, *words):
    with tempfile.TemporaryDirectory() as folder:
        path, mark = os.path.join(folder, "train.ipynb"), os.path.join(folder, "mark")
        cells = [{"cell_type": "code", "source": [cell.replace("{mark}", mark)]} for cell in cells]
        with open(path, "w") as file:
            json.dump({"cells": cells}, file)
        done = subprocess.run([sys.executable, ESTIMATOR, path, *words], capture_output=True, text=True)
        assert not os.path.exists(mark), "the notebook reached a process or a file"
        return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


class Estimator(unittest.TestCase):
    def test_notebook(self):
        status, run = estimator(CELLS)
        self.assertEqual(status, 0, run)
        self.assertEqual((run["instance_type"], run["instance_count"]), ("ml.p4d.24xlarge", 4))
        self.assertEqual(run["distribution"]["smdistributed"]["modelparallel"]["parameters"],
                         {"pipeline_parallel_degree": 2, "microbatches": 4, "sharded_data_parallel_degree": 8})
        self.assertEqual(run["unknown"], ["hyperparameters.bucket"])
        self.assertEqual(run["conditions"], ["large"])
        self.assertEqual((run["others"], run["failed"]), (0, 1))
        self.assertEqual(run["hyperparameters"]["lr"], 1e-4)

    def test_given(self):
        status, run = estimator(["large = ask()\n"] + CELLS, "--set", "large=True")
        self.assertEqual((status, run["conditions"]), (0, []))
        parameters = run["distribution"]["smdistributed"]["modelparallel"]["parameters"]
        self.assertEqual(parameters["sharded_data_parallel_degree"], 16)

    def test_what_must_be_known(self):
        self.assertEqual(estimator(["x = 1\n"])[0], 2)
        status, _ = estimator(["PyTorch = sagemaker.PyTorch\nPyTorch(instance_type=kind, instance_count=1)\n"])
        self.assertEqual(status, 2)

    def test_model_trainer(self):
        status, run = estimator(["""from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute
from sagemaker.train.distributed import SMP, Torchrun
ModelTrainer(compute=Compute(instance_type="ml.p5.48xlarge", instance_count=2),
             distributed=Torchrun(smp=SMP(hybrid_shard_degree=8, tensor_parallel_degree=2))).train()
"""])
        self.assertEqual(status, 0, run)
        self.assertEqual(run["instance_count"], 2)
        self.assertEqual(run["distribution"]["smdistributed"]["modelparallel"]["parameters"],
                         {"hybrid_shard_degree": 8, "tensor_parallel_degree": 2})


unittest.main()
