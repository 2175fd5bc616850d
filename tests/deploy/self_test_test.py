"""The bundle's self-test: any failure ends it with 1, and absent devices are skipped by name."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SELF_TEST = pathlib.Path(os.environ["TEST_SOURCE_DIR"]) / "deploy/bundle/self-test"
# Fakes of the bundle's programs: the text that they leave in --json=FILE, and their exit status.
FAKE_PROGRAM = """#!/bin/sh
for option in "$@"; do
  case $option in --json=*) printf '%s' '{said}' >"${{option#--json=}}" ;; esac
done
exit {status}
"""


class SelfTestTest(unittest.TestCase):
    OF_CUDA = ["bench_cpu", "bench_cuda", "bench_served"]

    def run_self_test(self, *devices, rows_status=0, gpu=0, sanitizer=None, cuda=0, served=0, vulkan=0, cpu=0, mps=None,
                      options=()):
        """Runs the self-test over programs that find these devices and end as the numbers say."""
        with tempfile.TemporaryDirectory() as folder:
            bundle = pathlib.Path(folder)
            shutil.copy(SELF_TEST, bundle / "self-test")
            (bundle / "bin").mkdir()
            rows = ", ".join(f'{{"name": "{device}/rows"}}' for device in devices)
            for name, said, status in (("sortition_self_test", rows, rows_status), ("cuda_gpu_test", "", gpu),
                                       ("bench_cuda", "cuda", cuda),
                                       ("bench_served", "served", served), ("bench_vulkan", "vulkan", vulkan),
                                       ("bench_cpu", "cpu", cpu)):
                program = bundle / "bin" / name
                program.write_text(FAKE_PROGRAM.format(said=said, status=status))
                program.chmod(0o755)
            # Without torch, no peers are asked.
            python = bundle / "python3"
            python.write_text("#!/bin/sh\nexit 1\n")
            python.chmod(0o755)
            if sanitizer is not None:
                (bundle / "compute-sanitizer").write_text(f"#!/bin/sh\nexit {sanitizer}\n")
                (bundle / "compute-sanitizer").chmod(0o755)
            if mps is not None:
                (bundle / "nvidia-cuda-mps-control").write_text(f"#!/bin/sh\nexit {mps}\n")
                (bundle / "nvidia-cuda-mps-control").chmod(0o755)
            ended = subprocess.run([bundle / "self-test", bundle / "results", *options], capture_output=True, text=True,
                                   env={"PATH": f"{bundle}:/usr/bin:/bin"}, timeout=60)
            left = sorted(path.stem for path in (bundle / "results").glob("*.json"))
            return ended.returncode, ended.stderr, left

    def test_what_is_there_is_tested_and_measured(self):
        status, _, left = self.run_self_test("cpu0", "cuda0", "vulkan1")
        self.assertEqual((status, left), (0, [*self.OF_CUDA, "bench_vulkan", "conformance"]))

    def test_the_multi_process_service_is_measured_where_it_starts(self):
        status, _, left = self.run_self_test("cpu0", "cuda0", mps=0, options=["--mps"])
        self.assertEqual((status, left), (0, [*self.OF_CUDA, "bench_served_mps", "conformance"]))
        for mps in (1, None):
            status, said, left = self.run_self_test("cpu0", "cuda0", mps=mps, options=["--mps"])
            self.assertEqual((status, left), (1, [*self.OF_CUDA, "conformance"]))
            self.assertIn("MPS did not start", said)

    def test_absent_device_is_skipped_by_name(self):
        status, said, left = self.run_self_test("cpu0", cuda=1, vulkan=1)
        self.assertEqual((status, left), (0, ["bench_cpu", "conformance"]))
        self.assertIn("cuda: skipped", said)
        self.assertIn("vulkan: skipped", said)

    def test_failed_benchmark_on_a_present_device_fails_at_the_end(self):
        for suite in ("cuda", "served", "vulkan", "cpu"):
            status, said, left = self.run_self_test("cpu0", "cuda0", "vulkan0", **{suite: 1})
            self.assertEqual((status, len(left)), (1, 5))
            self.assertIn(f"{suite} was not measured", said)

    def test_wrong_answer_fails_before_any_measurement(self):
        status, _, left = self.run_self_test("cpu0", "cuda0", rows_status=1)
        self.assertEqual((status, left), (1, ["conformance"]))

    def test_wrong_stream_or_text_fails_before_any_measurement(self):
        status, _, left = self.run_self_test("cpu0", "cuda0", gpu=1)
        self.assertEqual((status, left), (1, ["conformance"]))
        self.assertEqual(self.run_self_test("cpu0", gpu=1)[0], 0)

    def test_sanitizer_that_finds_or_is_not_there_fails(self):
        cuda = ["cpu0", "cuda0"]
        self.assertEqual(self.run_self_test(*cuda, sanitizer=0, options=["--sanitizer"])[0], 0)
        self.assertEqual(self.run_self_test(*cuda, sanitizer=9, options=["--sanitizer"])[0], 1)
        status, said, _ = self.run_self_test(*cuda, options=["--sanitizer=/nowhere/compute-sanitizer"])
        self.assertEqual(status, 1)
        self.assertIn("there is no /nowhere/compute-sanitizer", said)
        status, said, _ = self.run_self_test("cpu0", sanitizer=9, options=["--sanitizer"])
        self.assertEqual(status, 0)
        self.assertIn("compute-sanitizer was not run: there is no CUDA device", said)

    def test_no_bench_measures_nothing(self):
        self.assertEqual(self.run_self_test("cpu0", cpu=1, options=["--no-bench"])[2], ["conformance"])


if __name__ == "__main__":
    unittest.main()
