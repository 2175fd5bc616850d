"""The wheel can be made, is complete, and installs. The tests of the package use the package installed here."""

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

PACKAGE = os.environ["TEST_PACKAGE"]
INSTALLED = os.environ["TEST_INSTALLED"]


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments], check=True)


class WheelTest(unittest.TestCase):
    def test_installs(self):
        with tempfile.TemporaryDirectory() as folder:
            pip("wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, PACKAGE)
            wheel, = glob.glob(os.path.join(folder, "sortition-*.whl"))
            names = set(zipfile.ZipFile(wheel).namelist())
            for name in ("__init__.py", "_native.pyi", "py.typed", "interfaces.json", "v1/sampling_pb2.py",
                         "v1/sampling_pb2.pyi"):
                self.assertIn("sortition/" + name, names)
            self.assertTrue(any(name.startswith("sortition/_native.") and name.endswith(".so") for name in names))
            self.assertNotIn("none-any", os.path.basename(wheel), "the wheel holds compiled code")
            shutil.rmtree(INSTALLED, ignore_errors=True)
            pip("install", "--no-index", "--no-deps", "--target", INSTALLED, wheel)
        said = subprocess.run([sys.executable, "-c", "import sortition; print(sortition.__file__)"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        self.assertTrue(said.startswith(INSTALLED), said)


if __name__ == "__main__":
    unittest.main()
