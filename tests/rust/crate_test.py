"""The Rust crate: its tests in process and against a server, its text beside C's, and the example of docs/c.md.

Ends with status 77, which CTest reports as skipped, where there is no cargo.
"""

import os
import pathlib
import sys
import tempfile
import unittest

CARGO = os.environ.get("TEST_CARGO", "")
if not os.path.exists(CARGO):
    print("there is no cargo (./dev setup)")
    sys.exit(77)

# pylint: disable=wrong-import-position
from both import output_of, server
from docs_test import example, install
from same_test import SameTest  # runs here with the Rust program

FOLDER = os.environ["TEST_CARGO_TARGET"]
LIBRARY = str(pathlib.Path(os.environ["TEST_C_LIBRARY"]).parent)
# The compiler in cargo's folder, not another one on the path.
ENVIRONMENT = {"RUSTC": str(pathlib.Path(CARGO).parent / "rustc"), "CARGO_TARGET_DIR": FOLDER,
               "LD_LIBRARY_PATH": LIBRARY}
TESTS = str(pathlib.Path(os.environ["TEST_SOURCE_DIR"], "tests/rust/Cargo.toml"))


def cargo(command, *arguments, manifest=TESTS, **environment):
    return output_of(CARGO, command, "--offline", "--quiet", "--manifest-path", manifest, *arguments,
                     **{**ENVIRONMENT, **environment})


class CrateTest(unittest.TestCase):
    def test_crate_in_process(self):
        print(cargo("test", "--test", "local", SORTITION_LIB_DIR=LIBRARY))

    def test_crate_against_a_server(self):
        with server() as targets:
            print(cargo("test", "--test", "service", SORTITION_LIB_DIR=LIBRARY,
                        TEST_TARGETS=" ".join(targets), TEST_RECEIPTS=f"{targets.folder}/rust"))
            self.assertEqual(targets.compact_rows(), 6)
            self.assertIn("draw: 6 of 6 tokens", targets.verified("rust"))

    def test_example_in_rust_runs(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = install(f"{folder}/installed")
            pathlib.Path(folder, "src").mkdir()
            pathlib.Path(folder, "src/main.rs").write_text(example("rust"))
            crate = os.environ["TEST_SOURCE_DIR"] + "/client/rust"
            pathlib.Path(folder, "Cargo.toml").write_text(
                '[package]\nname = "example"\nversion = "0.1.0"\nedition = "2021"\n'
                f'[dependencies]\nsortition = {{ path = "{crate}" }}\n')
            printed = cargo("run", manifest=f"{folder}/Cargo.toml", **environment)
        self.assertRegex(printed, r"^token \d+, log probability -\d")


if __name__ == "__main__":
    cargo("build", "--bins", SORTITION_LIB_DIR=LIBRARY)
    os.environ["TEST_RUST_SAME"] = f"{FOLDER}/debug/draw_same"
    os.environ["LD_LIBRARY_PATH"] = LIBRARY
    unittest.main()
