"""Checks wheels.py's findings about the machine, and the README's ways to a token, without a build."""

import os
import pathlib
import sys
import tempfile
import unittest
from unittest import mock

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
sys.path.insert(0, str(SOURCE / "client/python"))

import first_contact  # noqa: E402
import wheels  # noqa: E402


class WheelsTest(unittest.TestCase):
    def test_pythons_with_headers_are_found(self):
        with tempfile.TemporaryDirectory() as folder:
            for version, has_headers in (("3.9.1", True), ("3.10.2", True), ("3.13.0", False)):
                home = pathlib.Path(folder, "versions", version)
                (home / "bin").mkdir(parents=True)
                (home / "include").mkdir()
                if has_headers:
                    (home / "include/Python.h").touch()
                major, minor, _ = version.split(".")
                python = home / "bin/python3"
                python.write_text(f"#!/bin/sh\necho {major} {minor} {home}/include\n", encoding="utf-8")
                python.chmod(0o755)
            os.environ.update(PYENV_ROOT=folder, PATH="")
            self.assertEqual(wheels.installed_headers(), {10: pathlib.Path(folder, "versions/3.10.2/include")})

    def test_here_makes_one_wheel_of_this_python(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(wheels, "run") as run, \
                mock.patch.object(wheels, "make") as make, mock.patch.dict(os.environ), \
                mock.patch.object(sys, "argv", ["wheels.py", "--here", "build", folder]):
            wheels.main()
        ((command, _),) = run.call_args_list
        self.assertEqual(command[command.index("--target"):], ("--target", "sortition_package"))
        make.assert_called_once_with(pathlib.Path("build"), pathlib.Path(folder), f"cp3{sys.version_info.minor}")

    def test_libraries_leave_out_the_platforms(self):
        libraries = [library.name for library in wheels.libraries_of(sys.executable)]
        self.assertFalse([name for name in libraries if name.startswith(("libc.", "libm.", "ld-linux"))], libraries)


class FirstContactTest(unittest.TestCase):
    def test_each_way_takes_five_lines(self):
        ways = first_contact.ways()
        self.assertEqual(list(ways), ["pip", "deb", "image", "source"])
        prepare, draw = first_contact.split(ways["pip"])
        self.assertIn("pip install", prepare.splitlines()[-1])
        self.assertIn("sampler.draw", draw)


if __name__ == "__main__":
    unittest.main()
