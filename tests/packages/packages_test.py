"""The packages that CPack makes of this build: their files and their dependencies."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

BUILD = pathlib.Path(os.environ["TEST_BUILD_DIR"])


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


class PackagesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        done = subprocess.run(["cpack", "--config", BUILD / "CPackConfig.cmake", "-B", folder.name], cwd=BUILD,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        assert done.returncode == 0, done.stdout
        cls.packages = {file.name.split("_")[0]: file for file in pathlib.Path(folder.name).glob("*.deb")}

    def files(self, package):
        """The package's files without folders and the files that every package has."""
        paths = (line.split()[5] for line in output("dpkg-deb", "-c", self.packages[package]).splitlines())
        return {path[1:] for path in paths if not path.endswith("/")} - {
            f"/usr/share/doc/{package}/{name}" for name in ("copyright", "changelog.gz", "changelog.Debian.gz")}

    def field(self, package, name):
        return output("dpkg-deb", "-f", self.packages[package], name).strip()

    def test_each_file_is_in_one_package(self):
        seen = {}
        for package in self.packages:
            for path in self.files(package):
                self.assertNotIn(path, seen, f"{package} and {seen.get(path)}")
                seen[path] = package

    def test_server_package_is_a_service(self):
        self.assertEqual(self.files("sortition"), {
            "/etc/sortition/sortitiond.flags", "/usr/bin/sortitiond", "/usr/lib/systemd/system/sortitiond.service",
            "/usr/lib/sysusers.d/sortition.conf", "/usr/share/bash-completion/completions/sortitiond",
            "/usr/share/man/man8/sortitiond.8.gz"})
        self.assertRegex(self.field("sortition", "Depends"), r"systemd-sysusers.*libc6 \(>= [\d.]+\)")

    def test_tools_need_no_server(self):
        self.assertEqual(
            {path for path in self.files("sortition-tools") if path.startswith("/usr/bin/")},
            {"/usr/bin/sortitionctl", "/usr/bin/sortition_self_test"})
        self.assertNotRegex(self.field("sortition-tools", "Depends"), r"\bsortition\b")

    def test_library_packages_pair(self):
        (library,) = (name for name in self.packages if re.fullmatch(r"libsortition[\d.]+", name))
        abi = library.removeprefix("libsortition")
        runtime = {pathlib.Path(path).name for path in self.files(library)}
        self.assertIn(f"libsortition.so.{abi}", runtime)
        self.assertFalse([name for name in runtime if not name.startswith("libsortition.so.")])
        development = {pathlib.Path(path).name for path in self.files("libsortition-dev")}
        self.assertLessEqual({"libsortition.so", "sampler.h", "sortition-config.cmake"}, development)
        self.assertFalse([name for name in development if ".so." in name])
        self.assertIn(f"{library} (= {self.field(library, 'Version')})", self.field("libsortition-dev", "Depends"))

    def test_settings_are_a_conffile(self):
        with tempfile.TemporaryDirectory() as folder:
            output("dpkg-deb", "--control", self.packages["sortition"], folder)
            self.assertEqual(pathlib.Path(folder, "conffiles").read_text(encoding="utf-8"),
                             "/etc/sortition/sortitiond.flags\n")
            for script in ("postinst", "prerm", "postrm"):
                output("sh", "-n", f"{folder}/{script}")


if __name__ == "__main__":
    unittest.main()
