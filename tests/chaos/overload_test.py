"""A short pass of overload, and planted defects that it finds."""

import os
import subprocess
import unittest

from sortitiond_process import UNDER_SANITIZER

OVERLOAD = os.environ["TEST_OVERLOAD"]


def run(*flags):
    return subprocess.run([OVERLOAD, *flags], check=False, capture_output=True, text=True)


class OverloadTest(unittest.TestCase):
    @unittest.skipIf(UNDER_SANITIZER, "it measures; the planted defects run it under a sanitizer")
    def test_four_times_capacity(self):
        # A modest worker's thousand rows of ten seconds can be a few hiccups of the machine short.
        found = run("--seconds=10", "--share_error=0.25")
        self.assertEqual(found.returncode, 0, found.stderr)
        print(found.stdout)

    def finds(self, plant, sign):
        found = run("--seconds=2", "--share_error=0.25", f"--plant={plant}")
        self.assertEqual(found.returncode, 1)
        self.assertIn(sign, found.stderr)

    def test_a_server_without_admission_is_found(self):
        self.finds("admission", "no step was refused")

    def test_a_client_with_four_shares_is_found(self):
        self.finds("shares", "shares are unequal")

    def test_a_wrong_token_is_found(self):
        self.finds("token", "1 tokens differ")


if __name__ == "__main__":
    unittest.main()
