"""A fast pass of every fault, a short soak, and planted defects that are found."""

import os
import subprocess
import sys
import unittest

from sortitiond_process import UNDER_SANITIZER

HERE = os.path.dirname(os.path.abspath(__file__))
CHAOS = [sys.executable, os.path.join(HERE, "chaos.py"), "--fast"]
SOAK = [sys.executable, os.path.join(HERE, "soak.py")]


class ChaosTest(unittest.TestCase):
    def test_a_pass_of_all_faults(self):
        subprocess.run(CHAOS, check=True)

    def test_a_planted_difference_is_found(self):
        found = subprocess.run([*CHAOS, "--only=kill", "--plant"], check=False, capture_output=True, text=True)
        self.assertNotEqual(found.returncode, 0)
        self.assertIn("1 tokens differ", found.stderr)

    @unittest.skipIf(UNDER_SANITIZER, "a sanitizer keeps memory by itself")
    def test_a_short_soak(self):
        subprocess.run([*SOAK, "--seconds=30"], check=True)

    def test_a_planted_leak_is_found(self):
        found = subprocess.run([*SOAK, "--seconds=6", "--plant"], check=False, capture_output=True, text=True)
        self.assertNotEqual(found.returncode, 0)
        self.assertIn("memory grows", found.stderr)


if __name__ == "__main__":
    unittest.main()
