"""The crate has the version of the C headers, whose declarations it takes."""

import os
import pathlib
import re
import unittest

ROOT = pathlib.Path(os.environ["TEST_SOURCE_DIR"])


class VersionTest(unittest.TestCase):
    def test_versions_are_the_headers(self):
        header = (ROOT / "client/c/include/sortition/sortition.h").read_text()
        version = re.search(r'#define SORTITION_VERSION ("[\d.]+")', header).group(1)
        self.assertIn(f"\nversion = {version}\n", (ROOT / "client/rust/Cargo.toml").read_text())


if __name__ == "__main__":
    unittest.main()
