"""The picture in the tree is drawn from the figures in the tree."""

import json
import os
import unittest

import break_even

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../docs")


class BreakEvenTest(unittest.TestCase):
    def test_the_picture_is_that_of_its_figures(self):
        with open(os.path.join(DOCS, "benchmarks/break-even.json"), encoding="utf-8") as file:
            figures = json.load(file)
        with open(os.path.join(DOCS, "break-even.svg"), encoding="utf-8") as file:
            self.assertEqual(file.read(), break_even.draw(figures))
        figures["results"][0]["value"] *= 2
        with open(os.path.join(DOCS, "break-even.svg"), encoding="utf-8") as file:
            self.assertNotEqual(file.read(), break_even.draw(figures))


if __name__ == "__main__":
    unittest.main()
