#!/usr/bin/env python3
"""What `smplan --for TOOL` finds, `smplan export` writes for TOOL; what packages said of the same winners is recorded
(interop/check/winners.json). Usage: test_winners.py ROOT SMPLAN."""
import json
import os
import sys
import tempfile
import unittest

ROOT, SMPLAN = sys.argv.pop(1), sys.argv.pop(1)
sys.path.insert(0, os.path.join(ROOT, "interop", "check"))
import winners  # noqa: E402

CASES = 2  # of the recorded thirty, for every tool: searches of seconds


class Winners(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with open(winners.RECORD) as file:
            cls.record = json.load(file)

    def test_packages_accepted_every_winner(self):
        self.assertEqual(self.record["cases"], winners.draw_cases(30, self.record["seed"]))
        for tool, answers in self.record["winners"].items():
            self.assertEqual(len(answers), 30, tool)
            for case, answer in zip(self.record["cases"], answers):
                self.assertIn(answer["status"], ("accepted", "no plan", "not checked"), f"{tool} {case}")
            self.assertGreater(sum(answer["status"] != "no plan" for answer in answers), 10, tool)

    def test_every_winner_is_exported_without_a_warning_about_overlap(self):
        found = 0
        for number, case in enumerate(self.record["cases"][:CASES]):
            for tool in winners.TOOLS:
                with self.subTest(case=number, tool=tool), tempfile.TemporaryDirectory() as folder:
                    path, plan = winners.winner(SMPLAN, case, tool, os.path.join(folder, "plan.toml"))
                    if path is None:
                        continue
                    found += 1
                    document = winners.export(SMPLAN, path, tool)
                    self.assertNotIn("errors", document, plan)
                    keys = [warning["key"] for warning in document.get("warnings", [])]
                    self.assertFalse([key for key in keys if key.startswith("plan.overlaps_")], plan)
        self.assertGreater(found, CASES * len(winners.TOOLS) // 2)

    def test_plans_that_no_tool_is_asked_for_are_refused_by_some(self):
        case = {**self.record["cases"][0], "model": "llama-2-7b", "instance": "p4d.24xlarge"}
        with tempfile.TemporaryDirectory() as folder:
            path, plan = winners.winner(SMPLAN, case, "smexec", os.path.join(folder, "plan.toml"))
            refused = [tool for tool in winners.TOOLS if "errors" in winners.export(SMPLAN, path, tool)]
        self.assertTrue(refused, plan)


unittest.main()
