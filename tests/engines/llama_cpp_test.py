"""The llama.cpp adapter under llama.cpp itself, with a model of random weights."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from rows import serve

CHECK = os.environ["TEST_LLAMA_CPP_CHECK"]


class LlamaCppTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.model = os.path.join(cls.folder.name, "random.gguf")
        writer = pathlib.Path(__file__).with_name("random_gguf.py")
        subprocess.run((sys.executable, str(writer), cls.model), check=True, timeout=120)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def check(self, *target):
        done = subprocess.run((CHECK, self.model, *target), stdout=subprocess.PIPE, text=True, timeout=300)
        print(done.stdout)
        self.assertEqual(done.returncode, 0)
        lines = done.stdout.splitlines()
        self.assertEqual(len(lines), 9)
        for line in lines:
            self.assertRegex(line, " equal$")

    def test_in_process(self):
        self.check()

    def test_through_the_service(self):
        with serve() as server:
            self.check(server.serving["listen"])


if __name__ == "__main__":
    unittest.main()
