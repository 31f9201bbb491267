#!/usr/bin/env python3
"""What the real packages accepted (interop/check/exports.json) still is what `smplan export` writes, and says the
plan's own degrees. Usage: test_exports.py ROOT SMPLAN."""
import json
import os
import sys
import unittest

ROOT, SMPLAN = sys.argv.pop(1), sys.argv.pop(1)
sys.path.insert(0, os.path.join(ROOT, "interop", "check"))
import exports  # noqa: E402


class Exports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(exports.RECORD) as file:
            cls.record = json.load(file)
        cls.plans = exports.read_plans()

    def test_every_plan_and_target_is_recorded(self):
        self.assertGreaterEqual(len(self.plans), 20)
        self.assertEqual(set(self.record["plans"]), set(self.plans))
        for name, targets in self.record["plans"].items():
            self.assertEqual(set(targets), set(exports.CHECKS), name)
        for target, check in exports.CHECKS.items():
            accepted = [name for name, targets in self.record["plans"].items()
                        if targets[target]["status"] == "accepted"]
            self.assertTrue(accepted or check is None, f"no plan was accepted by {target}")

    def test_exports_are_what_was_accepted(self):
        for name, targets in self.record["plans"].items():
            for target, answer in targets.items():
                with self.subTest(plan=name, target=target):
                    document = exports.export(SMPLAN, name, target)
                    if answer["status"] == "refused":
                        self.assertIn("errors", document, "written now; try it with the package, then --write")
                        self.assertEqual(exports.refused_keys(document), answer["keys"])
                    else:
                        self.assertNotIn("errors", document)
                        self.assertEqual(exports.digest(document), answer["sha256"],
                                         f"the text changed: exports.py {target} --write with its package")

    def test_what_packages_saw_is_what_the_plan_says(self):
        for name, targets in self.record["plans"].items():
            facts = exports.expected_facts(self.plans[name])
            for target, answer in targets.items():
                for key, value in answer.get("facts", {}).items():
                    if key != "parameters":  # held by tests/model against transformers' classes
                        self.assertEqual(value, facts[key], f"{name} {target} {key}")

    def test_a_plan_that_is_refused_names_a_key(self):
        for name, targets in self.record["plans"].items():
            for target, answer in targets.items():
                if answer["status"] == "refused":
                    self.assertTrue(answer["keys"] and all(answer["keys"]), f"{name} {target}")


unittest.main()
