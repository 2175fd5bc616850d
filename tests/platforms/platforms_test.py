#!/usr/bin/env python3
"""How ./dev platforms reads CTest's summary and versions, and which names it refuses. It makes no root."""

import contextlib
import io
import unittest

import platforms

LOG = """Left out: the CUDA kernels: there is no nvcc
98% tests passed, 2 tests failed out of 90

Total Test time (real) =  12.00 sec

The following tests did not run:
\t  7 - vulkan_test.Hardware (Skipped)

The following tests FAILED:
\t  3 - law_test.Draw/avx2  # GetParam() = 8-byte object (Failed)
\t 12 - python.client_test (Timeout)
Errors while running CTest
"""


class Platforms(unittest.TestCase):
    def test_summary_is_read(self):
        self.assertEqual(platforms.tests_in(LOG), {
            "passed": 87, "failed": 2, "skipped": 1,
            "failed_tests": ["law_test.Draw/avx2", "python.client_test"], "skipped_tests": ["vulkan_test.Hardware"]})

    def test_log_without_summary_has_no_tests(self):
        self.assertIsNone(platforms.tests_in("ninja: build stopped"))

    def test_last_command_names_each_left_out_part_once(self):
        log = "$ ./dev demo\nLeft out: the Python package\n$ ./dev test\n" + LOG + LOG
        self.assertEqual(platforms.left_out_in(log), ["the CUDA kernels: there is no nvcc"])

    def test_versions_are_upstreams(self):
        for full, upstream in {"1.2.0-2+b2": "1.2.0", "20240722.0-4": "20240722.0", "4:16.1.0-3": "16.1.0"}.items():
            self.assertEqual(platforms.package_version(full), upstream)

    def test_table_shows_what_failed(self):
        result = {"platform": "debian13-gcc", "compiler": "GCC 14.2.0", "versions": {"Highway": "1.2.0"},
                  "demo": {"status": 0, "seconds": 61.4}, "test": {"status": 1, "seconds": 5.0},
                  "tests": platforms.tests_in(LOG)}
        table = platforms.table_of([result])
        self.assertEqual(table.splitlines()[2],
                         "| debian13-gcc | GCC 14.2.0 | 1.2.0 |  |  |  |  |  | 61 | failed | 87 | 2 | 1 |")

    def test_unknown_name_is_refused(self):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors), self.assertRaises(SystemExit):
            platforms.main(["debian11-gcc"])
        self.assertIn("no platform debian11-gcc; there are: debian12-gcc", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
