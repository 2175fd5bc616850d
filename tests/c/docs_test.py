"""The example of docs/c.md in C, compiled and run with the installed library as pkg-config finds it."""

import os
import pathlib
import re
import tempfile
import unittest

from both import output_of, server

PAGE = pathlib.Path(os.environ["TEST_SOURCE_DIR"], "docs/c.md").read_text()


def example(language):
    """The page's only example in this language."""
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return found


def install(folder):
    """Installs the library in the folder. Returns the environment with which pkg-config and the loader find it."""
    output_of("cmake", "--install", os.environ["TEST_BUILD_DIR"], "--component", "c", "--prefix", folder)
    (library,) = pathlib.Path(folder).glob("**/libsortition_c.so")
    return {"PKG_CONFIG_PATH": str(library.parent / "pkgconfig"), "LD_LIBRARY_PATH": str(library.parent)}


class DocsTest(unittest.TestCase):
    def test_example_in_c_runs(self):
        with tempfile.TemporaryDirectory() as folder, server() as (tcp, _, _):
            environment = install(f"{folder}/installed")
            flags = output_of("pkg-config", "--cflags", "--libs", "sortition_c", **environment).split()
            pathlib.Path(folder, "example.c").write_text(example("c"))
            output_of(os.environ["TEST_C_COMPILER"], "-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o",
                      f"{folder}/example", f"{folder}/example.c", *flags)
            here = output_of(f"{folder}/example", **environment)
            self.assertRegex(here, r"^token \d+, log probability -\d")
            self.assertEqual(output_of(f"{folder}/example", tcp, **environment), here)

    def test_header_compiles_as_cpp(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = install(f"{folder}/installed")
            flags = output_of("pkg-config", "--cflags", "sortition_c", **environment).split()
            source = pathlib.Path(folder, "a.cc")
            source.write_text("#include <sortition/sortition.h>\nint main() { return sortition_version() == 0; }\n")
            output_of("c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", *flags,
                      str(source))


if __name__ == "__main__":
    unittest.main()
