"""The bundle's self-test: stages that are bounded, independent of each other, and brought home after each one."""

import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import unittest

SELF_TEST = pathlib.Path(os.environ["TEST_SOURCE_DIR"]) / "deploy/bundle/self-test"
PROGRAMS = ("bench_cpu", "bench_cuda", "bench_served", "bench_vulkan", "cuda_gpu_test", "sortition_self_test")
TOOLS = ("compute-sanitizer", "ncu", "nvidia-cuda-mps-control", "nvidia-smi", "python3")
STAGES = {"machine", "cuda_bits", "cuda_stream", "cpu_bits", "cpu_proof", "cuda_proof", "cuda_equal", "cuda", "peers",
          "served", "memcheck", "ncu_token_logprob_256", "ncu_top_k_top_p_1_peaked", "racecheck", "vulkan_bits",
          "vulkan_proof", "vulkan_equal", "vulkan", "cpu"}
# A device of each kind, as sortition_self_test names it.
DEVICES = """#!/bin/sh
case "$*" in
  *cuda*) echo 'cuda0 (a GPU): golden rows right' ;;
  *vulkan*) echo 'vulkan0 (VULKAN): golden rows right' ;;
esac
"""
NO_CUDA = """#!/bin/sh
case "$*" in *devices=cuda*) echo 'cuda: skipped: no CUDA driver' && exit 1 ;; esac
"""


class SelfTestTest(unittest.TestCase):
    def run_self_test(self, *options, scripts=None, without=()):
        """Runs it over programs that end with 0 or do what `scripts` has. Returns its status, each stage's state and
        text, and the names in the archive."""
        scripts = {"sortition_self_test": DEVICES.replace("VULKAN", "a GPU"), **(scripts or {})}
        with tempfile.TemporaryDirectory() as folder:
            bundle = pathlib.Path(folder)
            shutil.copy(SELF_TEST, bundle / "self-test")
            for name in {*PROGRAMS, *TOOLS} - {*without}:
                program = bundle / ("bin" if name in PROGRAMS else "tools") / name
                program.parent.mkdir(exist_ok=True)
                program.write_text(scripts.get(name, "#!/bin/sh\necho ended well\n"))
                program.chmod(0o755)
            ended = subprocess.run([bundle / "self-test", bundle / "results", *options], capture_output=True, text=True,
                                   env={"PATH": f"{bundle}/tools:/usr/bin:/bin"}, timeout=120)
            states = {line.split()[0]: tuple(line.split(None, 2)[1:]) for line in ended.stdout.splitlines()}
            with tarfile.open(bundle / "results" / "results.tar.gz") as archive:
                return ended.returncode, states, archive.getnames()

    def states_of(self, states, state):
        return {name for name, (is_now, _) in states.items() if is_now == state}

    def test_every_stage_runs_and_comes_back(self):
        status, states, names = self.run_self_test("--require=cuda,vulkan")
        self.assertEqual((status, self.states_of(states, "right")), (0, STAGES))
        for stage in STAGES:
            self.assertIn(f"results/{stage}.log", names)

    def test_failure_fails_at_the_end_and_stops_no_other(self):
        for program, stages in (("cuda_gpu_test", {"cuda_stream"}), ("bench_cuda", {"cuda"}),
                                ("compute-sanitizer", {"memcheck", "racecheck"})):
            status, states, _ = self.run_self_test(scripts={program: "#!/bin/sh\necho a reason\nexit 3\n"})
            self.assertEqual((status, self.states_of(states, "failed")), (1, stages))
            self.assertIn("exit code 3: a reason", states[stages.pop()][1])
            self.assertEqual(set(states), STAGES)

    def test_hanging_stage_is_stopped_by_name(self):
        status, states, names = self.run_self_test("--limit=2", scripts={"cuda_gpu_test": "#!/bin/sh\nexec sleep 60\n"})
        self.assertEqual((status, self.states_of(states, "late")), (1, {"cuda_stream"}))
        self.assertEqual(self.states_of(states, "right"), STAGES - {"cuda_stream"})
        self.assertIn("results/cuda_stream.log", names)

    def test_time_of_all_stages_is_bounded(self):
        status, states, _ = self.run_self_test("--seconds=7", scripts={"cuda_gpu_test": "#!/bin/sh\nexec sleep 60\n"})
        self.assertEqual((status, self.states_of(states, "right")), (1, {"machine", "cuda_bits"}))
        self.assertIn("not begun", states["cpu"][1])

    def test_archive_has_each_stage_before_the_next_one(self):
        listing = """#!/bin/sh
tar -tzf "$(dirname "$0")/../results/results.tar.gz" | grep -q results/cpu_bits.log
"""
        self.assertEqual(self.run_self_test(scripts={"bench_cuda": listing})[0], 0)

    def test_absent_device_is_skipped_by_name_unless_required(self):
        scripts = {"sortition_self_test": NO_CUDA}
        status, states, _ = self.run_self_test(scripts=scripts)
        self.assertEqual((status, states["cuda_bits"][0]), (0, "skipped"))
        self.assertIn("cuda: skipped: no CUDA driver", states["cuda_bits"][1])
        status, _, names = self.run_self_test("--require=cuda", scripts=scripts)
        self.assertEqual(status, 1)
        self.assertIn("results/stages.txt", names)

    def test_driver_that_computes_on_the_cpu_is_no_required_device(self):
        scripts = {"sortition_self_test": DEVICES.replace("VULKAN", "llvmpipe (LLVM 15)")}
        self.assertEqual(self.run_self_test("--require=cuda", scripts=scripts)[0], 0)
        self.assertEqual(self.run_self_test("--require=cuda,vulkan", scripts=scripts)[0], 1)

    def test_missing_tool_is_skipped_by_name(self):
        status, states, _ = self.run_self_test(without=["ncu", "compute-sanitizer"])
        self.assertEqual(status, 0)
        self.assertEqual(states["ncu_token_logprob_256"], ("skipped", "there is no ncu"))
        self.assertEqual(states["memcheck"], ("skipped", "there is no compute-sanitizer"))

    def test_options_add_and_leave_out_stages(self):
        self.assertEqual(set(self.run_self_test("--no-bench")[1]),
                         STAGES - {"cuda", "peers", "served", "ncu_token_logprob_256", "ncu_top_k_top_p_1_peaked",
                                   "vulkan", "cpu"})
        self.assertEqual(set(self.run_self_test("--mps", "--images=folder")[1]),
                         STAGES | {"cuda_images", "mps", "served_mps"})


if __name__ == "__main__":
    unittest.main()
