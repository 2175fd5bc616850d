"""The picture in the tree is drawn from the figures in the tree."""

import json
import os
import unittest

import rows_plot

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../docs")


class RowsPlotTest(unittest.TestCase):
    def test_the_picture_is_that_of_its_figures(self):
        with open(os.path.join(DOCS, "benchmarks/compact.json"), encoding="utf-8") as file:
            figures = json.load(file)
        with open(os.path.join(DOCS, "rows.svg"), encoding="utf-8") as file:
            picture = file.read()
        self.assertEqual(picture, rows_plot.draw(figures))
        for result in figures["results"]:
            if result["name"] == "step_tcp_64_256":
                result["baseline"] *= 2
        self.assertNotEqual(picture, rows_plot.draw(figures))


if __name__ == "__main__":
    unittest.main()
