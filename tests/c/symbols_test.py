"""The shared library exports the headers' functions and nothing else, each with the ABI version that added it."""

import os
import pathlib
import re
import subprocess
import unittest

from header_test import HEADER, frozen, version_of

LIBRARY = os.environ["TEST_C_LIBRARY"]
CONTRACT = pathlib.Path(os.environ["TEST_SOURCE_DIR"], "proto/sortition/v1/errors.proto").read_text()


def added_in(name):
    """Returns the ABI version that added a function."""
    headers = [*frozen(), HEADER]
    return next(version_of(header) for header in headers if f" {name}(" in header or f"*{name}(" in header)


def output_of(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class SymbolsTest(unittest.TestCase):
    def test_exports_are_the_headers_functions(self):
        declared = re.findall(r"^SORTITION_API [\w* ]*?\b(sortition_\w+)\(", HEADER, re.MULTILINE)
        self.assertEqual(HEADER.count("\nSORTITION_API "), len(declared))
        exported = [line.split()[-1] for line in output_of("nm", "-D", "--defined-only", LIBRARY).splitlines()]
        self.assertEqual(sorted(exported), sorted(f"{name}@@SORTITION_ABI_{added_in(name)}" for name in declared))

    def test_soname_has_the_major_version(self):
        major = re.search(r'#define SORTITION_VERSION "(\d+)', HEADER).group(1)
        self.assertIn(f"[libsortition_c.so.{major}]", output_of("readelf", "-d", LIBRARY))

    def test_reasons_are_the_contracts(self):
        contract = dict(re.findall(r"^  ([A-Z_]+) = (\d+);", CONTRACT, re.MULTILINE))
        contract["NONE"] = contract.pop("ERROR_REASON_UNSPECIFIED")
        self.assertEqual(dict(re.findall(r"\bSORTITION_REASON_(\w+) = (\d+)", HEADER)), contract)


if __name__ == "__main__":
    unittest.main()
