"""The pictures in the tree, and README's table of engines, are drawn from the figures in the tree."""

import json
import os
import unittest

import pictures

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")


def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


# From a picture to its figures' file, and a change of one figure by its name.
CASES = {
    "break-even": ("break-even", lambda results: results["step_in_process_1"].update(value=68.8)),
    "engines": ("engines", lambda results: results["llama_server_32_service"]["ours"].update(tokens_per_second=1e4)),
    "policy-gradient": ("policy-gradient", lambda runs: runs["with_sets"]["mismatch_kl"].__setitem__(0, 1e-2)),
    "rows": ("compact", lambda results: results["step_tcp_64_256"].update(baseline=3500)),
    "watermark": ("watermark", lambda results: results["found_0.5/0.001"].update(value=0.3)),
}


class PicturesTest(unittest.TestCase):
    def test_each_picture_is_that_of_its_figures(self):
        self.assertEqual(set(CASES), set(pictures.PICTURES))
        for name, (file, change) in CASES.items():
            with self.subTest(name):
                figures = json.loads(text(f"docs/benchmarks/{file}.json"))
                self.assertEqual(text(f"docs/{name}.svg"), pictures.PICTURES[name](figures))
                change(figures["runs"] if "runs" in figures else pictures.by_name(figures))
                self.assertNotEqual(text(f"docs/{name}.svg"), pictures.PICTURES[name](figures))

    def test_the_table_of_engines_is_that_of_its_figures(self):
        figures = json.loads(text("docs/benchmarks/engines.json"))
        for row in pictures.engines_table(figures):
            self.assertIn(row, text("README.md"))
        CASES["engines"][1](pictures.by_name(figures))
        self.assertNotIn(pictures.engines_table(figures)[-1], text("README.md"))


if __name__ == "__main__":
    unittest.main()
