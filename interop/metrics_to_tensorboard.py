#!/usr/bin/env python3
"""Writes the metrics of `smexec --metrics FILE` as TensorBoard event files.

Usage: metrics_to_tensorboard.py FILE.jsonl FOLDER

Needs the package tensorboardX (pip install tensorboardX), or torch with tensorboard. A loss is the scalar
`train/loss`, a held-out one `eval/loss`; other numbers of a step are `train/NAME`. Steps and times are the file's.
Then: tensorboard --logdir FOLDER
"""
import datetime
import json
import sys


def writer_of(folder):
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            sys.exit("metrics_to_tensorboard.py: neither tensorboardX nor torch with tensorboard is installed: "
                     "pip install tensorboardX")
    return SummaryWriter(folder)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    path, folder = sys.argv[1:]
    writer = writer_of(folder)
    scalars = 0
    with open(path, encoding="utf-8") as file:
        for number, text in enumerate(file, 1):
            try:
                line = json.loads(text)
                step, event = line["step"], line["event"]
                time = datetime.datetime.fromisoformat(line["time"].replace("Z", "+00:00")).timestamp()
            except (ValueError, KeyError, TypeError) as error:
                if not text.endswith("\n"):
                    break  # a line that a kill cut off
                sys.exit(f"{path}:{number}: no line of metrics: {error!r}")
            group = {"step": "train", "evaluation": "eval"}.get(event)
            if group is None:
                continue
            for name, value in line.items():
                if name != "step" and isinstance(value, (int, float)):
                    writer.add_scalar(f"{group}/{name}", value, step, walltime=time)
                    scalars += 1
    writer.close()
    print(f"{folder}: {scalars} scalars of {path}")


if __name__ == "__main__":
    main()
