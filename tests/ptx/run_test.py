"""`./dev ptx` ends with 0 only if every case, fault and kernel was run and held."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

RUN = pathlib.Path(os.environ["TEST_SOURCE_DIR"]) / "tests/ptx/run.py"
# A fake test binary: lists its cases, and runs the script in a file with the case's name.
FAKE_BINARY = """#!/bin/sh
for option in "$@"; do
  case $option in
    --gtest_list_tests) printf '%s\\n' "{listed}"; exit 0 ;;
    --gtest_filter=*) name=${{option#--gtest_filter=}} ;;
  esac
done
. "{folder}/$name"
"""
PASSES = "echo '[  PASSED  ] 1 test.'"
MODULE = """.visible .entry Read(
)
{
}
.func Helper(
)
.visible .entry Advance(
)
"""


class RunTest(unittest.TestCase):
    def run_suite(self, *, advance=PASSES, fault=PASSES, launches="1", emulated="Kernel.\n  Read", options=()):
        """Runs a suite of three cases: two scripts, the last one's launches, the emulator's cases."""
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "bin").mkdir()
            listed = {"ptx_kernel_test": "Kernel.\n  Read\nPtxFaults.\n  AreFound",
                      "ptx_library_test": "Sequences.\n  Advance  # TypeParam",
                      "cuda_test": emulated + "\nEmulator.\n  RunsEveryThread", "library_test": "Sequences.\n  Advance"}
            for binary, cases in listed.items():
                path = folder / "bin" / binary
                path.write_text(FAKE_BINARY.format(listed=cases, folder=folder))
                path.chmod(0o755)
            covers = "printf 'module sample\\nentry {} {}\\nfunction Helper {}\\n' > \"$PTX_COVERAGE\"\n"
            (folder / "Kernel.Read").write_text(covers.format("Read", "101", "0000") + PASSES)
            (folder / "Sequences.Advance").write_text(covers.format("Advance", launches, "0010") + advance)
            (folder / "PtxFaults.AreFound").write_text("echo 'planted: barrier removed, line 9: race'\n" + fault)
            (folder / "sample_90.ptx").write_text(MODULE)
            (folder / "ptx_modules").write_text(f"{folder}/sample_90.ptx\n")
            ended = subprocess.run([sys.executable, RUN, folder, "--schedules=2", *options], capture_output=True,
                                   text=True, timeout=60)
            return ended.returncode, ended.stdout

    def test_whole_suite_that_holds_ends_with_0(self):
        status, said = self.run_suite()
        self.assertEqual(status, 0, said)
        self.assertIn("3 cases in 2 schedules: 5 of 5 runs passed", said)
        self.assertIn("planted faults: 1 named ones found", said)
        self.assertIn("kernels: 2 of 2 launched; instructions: 4 of 8 reached", said)
        self.assertIn("not run: Emulator: tests the emulator", said)

    def test_case_that_fails_in_one_schedule_fails_the_run(self):
        status, said = self.run_suite(advance=f"test $PTX_SCHEDULE = 1 && {PASSES}")
        self.assertEqual(status, 1)
        self.assertIn("WRONG: Sequences.Advance failed in schedule 2", said)
        self.assertNotIn("failed in schedule 1", said)

    def test_case_that_is_killed_or_runs_nothing_fails_the_run(self):
        for end in ("kill -KILL $$", "exit 0"):
            self.assertEqual(self.run_suite(advance=end)[0], 1)

    def test_skipped_case_fails_the_run_by_name(self):
        status, said = self.run_suite(advance=f"echo '[  SKIPPED ] Sequences.Advance'; {PASSES}")
        self.assertEqual(status, 1)
        self.assertIn("WRONG: Sequences.Advance was skipped", said)

    def test_fault_that_is_not_found_fails_the_run(self):
        self.assertEqual(self.run_suite(fault="exit 1")[0], 1)

    def test_kernel_that_is_never_launched_fails_the_run_by_name(self):
        status, said = self.run_suite(launches="0")
        self.assertEqual(status, 1)
        self.assertIn("WRONG: kernel Advance of sample.cu was never launched", said)

    def test_absent_case_of_the_emulator_fails_the_run(self):
        status, said = self.run_suite(emulated="Kernel.\n  Read\n  Weigh")
        self.assertEqual(status, 1)
        self.assertIn("WRONG: Kernel.Weigh does not run under the interpreter", said)

    def test_filter_asks_for_neither(self):
        self.assertEqual(self.run_suite(launches="0", emulated="Kernel.\n  Weigh", options=["--filter=*"])[0], 0)


if __name__ == "__main__":
    unittest.main()
