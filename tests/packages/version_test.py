"""Everything with a version has the same one: project()'s in the root's CMakeLists.txt."""

import os
import pathlib
import re
import subprocess
import unittest

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])
BUILD = pathlib.Path(os.environ["TEST_BUILD_DIR"])


def text(path):
    return path.read_text(encoding="utf-8")


(VERSION,) = re.findall(r"^project\(Sortition VERSION ([\d.]+)", text(SOURCE / "CMakeLists.txt"), re.MULTILINE)


class VersionTest(unittest.TestCase):
    def test_programs_print_it(self):
        for program in ("TEST_SORTITIOND", "TEST_SORTITIONCTL"):
            printed = subprocess.run([os.environ[program], "--version"], stdout=subprocess.PIPE, text=True,
                                     check=False).stdout
            self.assertEqual(printed.split()[-1], VERSION)

    def test_changelog_begins_with_it(self):
        """Its date is the tag's, and "unreleased" before."""
        newest = re.search(r"^## \[(.*?)\] - (.*)$", text(SOURCE / "CHANGELOG.md"), re.MULTILINE)
        self.assertEqual(newest[1], VERSION)
        self.assertRegex(newest[2], r"^(unreleased|\d{4}-\d\d-\d\d)$")

    def test_packages_have_it(self):
        self.assertIn(f'set(CPACK_PACKAGE_VERSION "{VERSION}")', text(BUILD / "CPackConfig.cmake"))
        if (BUILD / "python").exists():
            self.assertEqual(text(BUILD / "python/VERSION"), VERSION)
        self.assertIn(f'__version__ = "{VERSION}"', text(SOURCE / "client/verify/sortition_verify/__init__.py"))
        found = text(BUILD / "sortition-config-version.cmake")
        self.assertIn(f'set(PACKAGE_VERSION "{VERSION}")', found)

    def test_pages_name_no_other(self):
        """Pages that name a version of this project name this one."""
        named = r"(?:sortition[:_-]|libsortition\S*_|image .*sortition:)(\d+\.\d+\.\d+)\b"
        for page in [SOURCE / "README.md", SOURCE / "deploy/README.md", *SOURCE.glob("docs/*.md")]:
            for other in re.findall(named, text(page)):
                self.assertEqual(other, VERSION, page)


if __name__ == "__main__":
    unittest.main()
