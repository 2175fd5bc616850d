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
        parts = [int(part) for part in re.findall(r"\d+", version)]
        number = parts[0] * 1000000 + parts[1] * 1000 + parts[2]
        self.assertIn(f"#define SORTITION_VERSION_NUMBER {number} ", header)
        self.assertIn(f"\nversion = {version}\n", (ROOT / "client/rust/Cargo.toml").read_text())


if __name__ == "__main__":
    unittest.main()
