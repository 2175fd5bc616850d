"""The picture of engines, and README's table, are drawn from the figures in the tree."""

import json
import os
import unittest

import picture

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")


def text(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


class PictureTest(unittest.TestCase):
    def test_picture_and_table_are_those_of_the_figures(self):
        figures = json.loads(text("docs/benchmarks/engines.json"))
        self.assertEqual(text("docs/engines.svg"), picture.draw(figures))
        for row in picture.table(figures):
            self.assertIn(row, text("README.md"))
        figures["results"][-1]["ours"]["tokens_per_second"] *= 2
        self.assertNotEqual(text("docs/engines.svg"), picture.draw(figures))
        self.assertNotIn(picture.table(figures)[-1], text("README.md"))


if __name__ == "__main__":
    unittest.main()
