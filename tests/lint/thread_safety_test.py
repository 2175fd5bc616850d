"""The thread-safety check looks at every source, however the build puts them together."""

import json
import os
import tempfile
import unittest

import thread_safety


class SourcesTest(unittest.TestCase):
    def setUp(self):
        self.before = os.getcwd()
        self.folder = tempfile.TemporaryDirectory()
        os.chdir(os.path.realpath(self.folder.name))

    def tearDown(self):
        os.chdir(self.before)
        self.folder.cleanup()

    @staticmethod
    def write(path, text):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def compile_commands(self, *files):
        entries = [{"directory": os.getcwd(), "file": file, "command": "c++ -DX -O3 -c " + file} for file in files]
        self.write("build/compile_commands.json", json.dumps(entries))

    def test_sources_of_a_unity_build_are_found(self):
        self.write("service/a.cc", "absl::Mutex mutex;")
        self.write("service/b.cc", "absl::Mutex mutex;")
        self.write("service/c.cc", "int no_lock;")
        self.write("tests/d.cc", "absl::Mutex mutex;")
        self.write("service/e.cc", "absl::Mutex mutex;")
        unity = "build/Unity/unity_0_cxx.cxx"
        parts = ("service/a.cc", "service/b.cc", "service/c.cc", "tests/d.cc")
        self.write(unity, "".join(f'/* NOLINT */\n#include "{os.path.abspath(part)}"\n' for part in parts))
        self.compile_commands(unity, "service/e.cc")
        self.assertEqual(thread_safety.sources("build"),
                         [(f"service/{name}.cc", ["-DX"]) for name in ("a", "b", "e")])


if __name__ == "__main__":
    unittest.main()
