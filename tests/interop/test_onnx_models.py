#!/usr/bin/env python3
"""What smsim read of torchvision's and transformers' exports (interop/check/onnx_models.json) is what the modules have,
and still is what it reads of the graphs that are kept. Usage: test_onnx_models.py ROOT SMSIM."""
import gzip
import json
import os
import subprocess
import sys
import tempfile
import unittest

ROOT, SMSIM = sys.argv.pop(1), sys.argv.pop(1)
sys.path.insert(0, os.path.join(ROOT, "interop", "check"))
import onnx_models as check  # noqa: E402


class OnnxModels(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(check.RECORD) as file:
            cls.record = json.load(file)

    def test_every_model_is_recorded_in_every_way(self):
        self.assertGreaterEqual(len(check.MODELS), 29 + 5)
        self.assertEqual({name: set(entry["exports"]) for name, entry in self.record["models"].items()},
                         {name: set(ways) for name, (_, ways) in check.MODELS.items()})
        self.assertTrue(self.record["date"] and self.record["versions"]["torch"])

    def test_exports_for_training_have_the_modules_parameters(self):
        for name, entry in self.record["models"].items():
            with self.subTest(name):
                answer = entry["exports"]["train"]
                self.assertEqual(answer["status"], "read", answer.get("message"))
                self.assertEqual(answer["parameters"] - entry["parameters"], check.KNOWN.get(name, (0,))[0])

    def test_what_other_exports_lost_or_doubled_is_told(self):
        words = ("norm", "twice", "tables of positions", "relative positions")
        for name, entry in self.record["models"].items():
            for way, answer in entry["exports"].items():
                if way == "train":
                    continue
                with self.subTest(f"{name} {way}"):
                    self.assertEqual(answer["status"], "read", answer.get("message"))
                    if answer["parameters"] != entry["parameters"]:
                        self.assertTrue(any(word in remark for remark in answer["assumptions"] for word in words),
                                        answer["assumptions"])

    def test_kept_graphs_are_read_as_recorded(self):
        kept = sorted(name.removesuffix(".onnx.gz") for name in os.listdir(check.GRAPHS))
        self.assertEqual(kept, sorted(check.KEPT))
        for name in kept:
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, name + ".onnx")
                with gzip.open(os.path.join(check.GRAPHS, name + ".onnx.gz")) as packed, open(path, "wb") as graph:
                    graph.write(packed.read())
                model, way = name.split(".")
                answer = self.record["models"][model]["exports"][way]
                self.assertEqual(check.read(SMSIM, path).get("parameters"), answer["parameters"])


unittest.main()
