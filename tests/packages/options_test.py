"""The options of the build, by configurations of the tree: each part alone, all but each, and none."""

import os
import re
import subprocess
import tempfile
import unittest

# Each option, with the other options that it needs.
OPTIONS = {
    "SORTITION_CUDA": [],
    "SORTITION_VULKAN": [],
    "SORTITION_BUILD_CLIENT": [],
    "SORTITION_BUILD_TOOLS": ["SORTITION_BUILD_CLIENT"],
    "SORTITION_BUILD_ENGINES": ["SORTITION_BUILD_CLIENT"],
    "SORTITION_BUILD_PYTHON": ["SORTITION_BUILD_CLIENT"],
    "SORTITION_BUILD_TESTS": ["SORTITION_VULKAN", "SORTITION_BUILD_CLIENT", "SORTITION_BUILD_TOOLS"],
}
NONE = dict.fromkeys(OPTIONS, "OFF")


class OptionsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def configure(self, values):
        """Returns the status and the output, in which each run of white space is one space."""
        done = subprocess.run(["cmake", "-S", os.environ["TEST_SOURCE_DIR"], "-B", self.folder.name, "-G", "Ninja",
                               f"-DCMAKE_CXX_COMPILER={os.environ['TEST_COMPILER']}",
                               *(f"-D{option}={value}" for option, value in values.items())],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done.returncode, " ".join(done.stdout.split())

    def test_none_leaves_the_server_alone(self):
        status, output = self.configure(NONE)
        self.assertEqual(status, 0, output)
        for option in OPTIONS:
            self.assertIn(f": {option} is OFF", output)
        targets = subprocess.run(["ninja", "-C", self.folder.name, "-t", "targets", "all"], stdout=subprocess.PIPE,
                                 text=True, check=True).stdout
        self.assertEqual(re.findall(r"^bin/(\w+): CXX_EXECUTABLE", targets, re.MULTILINE), ["sortitiond"])
        self.assertNotRegex(targets, r"libsortition_(client|devices_vulkan)")

    def test_each_off(self):
        for option in OPTIONS:
            with self.subTest(option):
                status, output = self.configure(dict.fromkeys(OPTIONS, "AUTO") | {option: "OFF"})
                self.assertEqual(status, 0, output)
                self.assertIn(f": {option} is OFF", output)

    def test_each_on(self):
        """A part is an error if the machine lacks something for it, with AUTO's reason to leave it out."""
        _, plain = self.configure(dict.fromkeys(OPTIONS, "AUTO"))
        for option, needed in OPTIONS.items():
            with self.subTest(option):
                status, output = self.configure(NONE | dict.fromkeys([*needed, option], "ON"))
                if status == 0:
                    self.assertNotIn(f": {option} is OFF", output)
                    continue
                error = re.search(r"(\w+ is ON), but (.*?) Call Stack", output)
                self.assertIsNotNone(error, output)
                self.assertRegex(plain, rf"Left out: [^:]+: {re.escape(error[2])} ")
                print(f"left out: {error[1]}, but {error[2]}")

    def test_a_part_without_what_it_needs_is_an_error(self):
        status, output = self.configure(NONE | {"SORTITION_BUILD_TOOLS": "ON"})
        self.assertNotEqual(status, 0)
        self.assertIn("SORTITION_BUILD_TOOLS is ON, but the client is left out", output)


if __name__ == "__main__":
    unittest.main()
