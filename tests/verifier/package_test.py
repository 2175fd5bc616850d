"""The verifier as users install it: its wheel, alone in a new environment, without an index of packages."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

import numpy

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])


def run(*command):
    return subprocess.run(command, capture_output=True, text=True,
                          env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"})


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        made = run(SOURCE / "dev", "wheel", cls.folder.name, "--verifier")
        assert made.returncode == 0, made.stderr
        (cls.wheel,) = pathlib.Path(cls.folder.name).glob("*.whl")
        cls.environment = pathlib.Path(cls.folder.name, "environment")
        subprocess.run([sys.executable, "-m", "venv", cls.environment], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_wheel_is_pure_and_holds_the_licence(self):
        self.assertTrue(self.wheel.name.endswith("-py3-none-any.whl"), self.wheel.name)
        names = zipfile.ZipFile(self.wheel).namelist()
        self.assertTrue(any(name.endswith("licenses/LICENSE") for name in names))
        for name in names:
            self.assertTrue(name.startswith("sortition_verify"), name)
            self.assertTrue(name.endswith(".py") or ".dist-info/" in name, name)

    def test_installed_alone_it_checks(self):
        python, program = self.environment / "bin/python3", self.environment / "bin/sortition-verify"
        # numpy is the only package that it needs. The tests' own stands for the one that an index would give.
        (site,) = self.environment.glob("lib/python*/site-packages")
        (site / "numpy.pth").write_text(str(pathlib.Path(numpy.__file__).parents[1]), encoding="utf-8")
        installed = run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--find-links", self.folder.name,
                        "sortition-verify")
        self.assertEqual(installed.returncode, 0, installed.stderr)
        needs = run(python, "-c", "import importlib.metadata as m; print(m.requires('sortition-verify'))")
        self.assertEqual(needs.stdout.strip(), "['numpy>=1.23']")

        vectors = SOURCE / "kernels/law/vectors/golden_outputs.json"
        count = len(json.loads(vectors.read_text(encoding="utf-8"))["rows"])
        for command in ([program, "vectors", vectors], [python, "-m", "sortition_verify", vectors]):
            checked = run(*command)
            self.assertEqual((checked.returncode, checked.stdout), (0, f"{count} rows, 0 differ\n"), checked.stderr)
        refused = run(program, "archive", vectors)
        self.assertEqual(refused.returncode, 4)
        self.assertIn("PROBLEM damaged: no gzip", refused.stdout)
        loaded = run(python, "-c", "import sys, sortition_verify.__main__; print('sortition' in sys.modules)")
        self.assertEqual(loaded.stdout.strip(), "False", loaded.stderr)


if __name__ == "__main__":
    unittest.main()
