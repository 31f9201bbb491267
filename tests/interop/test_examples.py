#!/usr/bin/env python3
"""The tables of docs/formats.md on examples and on exports are what the records say. Usage: test_examples.py ROOT."""
import collections
import json
import os
import re
import sys
import unittest

ROOT = sys.argv.pop(1)
NAMES = {"Megatron-LM": "megatron", "DeepSpeedExamples": "deepspeed", "amazon-sagemaker-examples": "sagemaker",
         "torchtitan": "torchtitan"}


def load(name):
    with open(os.path.join(ROOT, "interop", "check", name)) as file:
        return json.load(file)


def rows(first):
    """Cells of the table's rows in docs/formats.md whose first cell matches."""
    with open(os.path.join(ROOT, "docs", "formats.md")) as file:
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if line.startswith("|") and re.fullmatch(first, cells[0]):
                yield cells


class Examples(unittest.TestCase):
    def test_the_table_of_examples(self):
        record, seen = load("examples.json"), set()
        for name, files, read, refused, silent, _ in rows(r"(Megatron-LM|DeepSpeedExamples|amazon-sagemaker-examples|torchtitan) .*"):
            project, commit = name.replace(",", "").split()[:2]
            source = record[NAMES[project]]
            count = collections.Counter(answer["status"] for answer in source["files"].values())
            self.assertEqual([len(source["files"]), count["read"], count["refused"], count["not captured"]],
                             [int(files), int(read), int(refused), int(silent)], name)
            self.assertIn(commit, source["commit"])
            self.assertEqual(set(count) - {"read", "refused", "not captured"}, set(), "no file may end otherwise")
            seen.add(NAMES[project])
        self.assertEqual(seen, set(NAMES.values()))

    def test_a_refusal_names_a_key_or_says_why(self):
        for source in load("examples.json").values():
            for name, answer in source["files"].items():
                if answer["status"] == "refused":
                    self.assertTrue(answer["keys"] or answer["messages"][0], name)

    def test_the_table_of_exports(self):
        plans, seen = load("exports.json")["plans"], set()
        for cells in rows(r"`[a-z0-9-]+`"):
            if len(cells) != 4 or not re.fullmatch(r"\d+", cells[2]):
                continue
            target = cells[0].strip("`")
            count = collections.Counter(targets[target]["status"] for targets in plans.values())
            self.assertEqual([count["accepted"], count["refused"]], [int(cells[2]), int(cells[3])], target)
            seen.add(target)
        self.assertGreaterEqual(len(seen), 8)


unittest.main()
