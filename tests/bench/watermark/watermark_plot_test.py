"""The picture in the tree is drawn from the figures in the tree."""

import json
import os
import unittest

import watermark_plot

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../docs")


class WatermarkPlotTest(unittest.TestCase):
    def test_the_picture_is_that_of_its_figures(self):
        with open(os.path.join(DOCS, "benchmarks/watermark.json"), encoding="utf-8") as file:
            results = json.load(file)["results"]
        with open(os.path.join(DOCS, "watermark.svg"), encoding="utf-8") as file:
            picture = file.read()
        self.assertEqual(picture, watermark_plot.draw(results))
        for result in results:
            if result["name"] == "found_0.5/0.001":
                result["value"] /= 2
        self.assertNotEqual(picture, watermark_plot.draw(results))


if __name__ == "__main__":
    unittest.main()
