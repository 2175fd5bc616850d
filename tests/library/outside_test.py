"""The installed library: a program outside the tree finds it, builds with it and runs."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).parent / "outside"
BUILD = os.environ["TEST_BUILD_DIR"]


def run(*command: str) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
    return done.stdout


class Outside(unittest.TestCase):
    def test_a_program_finds_builds_and_runs(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            prefix, build = f"{folder}/installed", f"{folder}/build"
            for component in ("library", "cmake"):
                run("cmake", "--install", BUILD, "--component", component, "--prefix", prefix)
            run("cmake", "-S", str(SOURCE), "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}")
            run("cmake", "--build", build)
            printed = run(f"{build}/outside")
        self.assertRegex(printed, r"^logprob -0\.6931 at temperature 0\.8\n")
        self.assertRegex(printed, r"\ncuda: ")

    def test_library_exports_only_its_names(self) -> None:
        (library,) = pathlib.Path(BUILD, "lib").glob("libsortition.so.*.*.*")
        symbols = run("nm", "--dynamic", "--defined-only", "--demangle", str(library)).splitlines()
        names = [line.split(maxsplit=2)[2] for line in symbols]
        self.assertTrue(any("CudaSampler::Sample" in name for name in names))
        functions = "Compile|PenaltyBits|BiasBits|Logprob|ProcessedTemperature"
        allowed = re.compile(rf"sortition::(CudaProducer|CudaSampler|{functions})\b")
        foreign = [name for name in names if not allowed.search(name) and re.search(r"absl|hwy|sortition", name)]
        self.assertEqual(foreign, [])


if __name__ == "__main__":
    unittest.main()
