"""Worlds of one to four minutes have no difference and every pair of options. Faults planted in the model are found."""

import os
import pathlib
import subprocess
import sys
import unittest

from model import PLANTS

MODEL = pathlib.Path(__file__).with_name("model.py")
SCALE = float(os.environ.get("TEST_SCALE", "1"))


def run(*flags):
    return subprocess.run([sys.executable, str(MODEL), *flags], capture_output=True, text=True, check=False)


class Model(unittest.TestCase):
    def test_servers_answer_as_the_model_does(self):
        flags = [] if SCALE >= 1 else [f"--seconds={60 * SCALE}", "--least=0"]
        done = run(*flags)
        print(done.stdout[-40000:])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_planted_faults_are_found(self):
        for plant in PLANTS:
            with self.subTest(plant):
                done = run("--seconds=150", f"--plant={plant}", "--least=0")  # ends with the first difference
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn("the model says", done.stdout)


if __name__ == "__main__":
    unittest.main()
