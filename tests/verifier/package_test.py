"""The verifier as users install it: its wheel, alone in a new environment, without an index of packages; and the
action that installs and runs it."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

import numpy
import yaml

SOURCE = pathlib.Path(os.environ["TEST_SOURCE_DIR"])


def run(*command, **environment):
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, capture_output=True, text=True, env={**inherited, **environment})


class PackageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        made = run(SOURCE / "dev", "wheel", cls.folder.name, "--verifier")
        assert made.returncode == 0, made.stderr
        (cls.wheel,) = pathlib.Path(cls.folder.name).glob("*.whl")
        cls.environment = pathlib.Path(cls.folder.name, "environment")
        subprocess.run([sys.executable, "-m", "venv", cls.environment], check=True)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_wheel_is_pure_and_holds_the_licence(self):
        self.assertTrue(self.wheel.name.endswith("-py3-none-any.whl"), self.wheel.name)
        names = zipfile.ZipFile(self.wheel).namelist()
        self.assertTrue(any(name.endswith("licenses/LICENSE") for name in names))
        for name in names:
            self.assertTrue(name.startswith("sortition_verify"), name)
            self.assertTrue(name.endswith(".py") or ".dist-info/" in name, name)

    def give_packages(self, environment):
        """numpy is the only package that the verifier needs, and setuptools what makes its wheel. The tests' own stand
        for those that an index would give."""
        (site,) = environment.glob("lib/python*/site-packages")
        own = str(pathlib.Path(numpy.__file__).parents[1])
        (site / "tests.pth").write_text(f"import sys; sys.path.insert(1, {own!r})\n", encoding="utf-8")

    def test_installed_alone_it_checks(self):
        python, program = self.environment / "bin/python3", self.environment / "bin/sortition-verify"
        self.give_packages(self.environment)
        installed = run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--find-links", self.folder.name,
                        "sortition-verify")
        self.assertEqual(installed.returncode, 0, installed.stderr)
        needs = run(python, "-c", "import importlib.metadata as m; print(m.requires('sortition-verify'))")
        self.assertEqual(needs.stdout.strip(), "['numpy>=1.23']")

        vectors = SOURCE / "kernels/law/vectors/golden_outputs.json"
        count = len(json.loads(vectors.read_text(encoding="utf-8"))["rows"])
        for command in ([program, "vectors", vectors], [python, "-m", "sortition_verify", vectors]):
            checked = run(*command)
            self.assertEqual((checked.returncode, checked.stdout), (0, f"{count} rows, 0 differ\n"), checked.stderr)
        refused = run(program, "archive", vectors)
        self.assertEqual(refused.returncode, 4)
        self.assertIn("PROBLEM damaged: no gzip", refused.stdout)
        loaded = run(python, "-c", "import sys, sortition_verify.__main__; print('sortition' in sys.modules)")
        self.assertEqual(loaded.stdout.strip(), "False", loaded.stderr)

    def action(self, archives):
        """Runs the scripts of the action as a runner would. Returns the last one's result, output and summary."""
        folder = pathlib.Path(self.folder.name)
        tree = folder / "tree"
        if not tree.exists():
            shutil.copytree(SOURCE / ".github", tree / ".github")
            shutil.copytree(SOURCE / "client/verify", tree / "client/verify")
        action = yaml.safe_load((tree / ".github/actions/verify/action.yml").read_text(encoding="utf-8"))
        given = {"${{ github.action_path }}": str(tree / ".github/actions/verify"), "${{ inputs.path }}": archives,
                 "${{ inputs.keys }}": action["inputs"]["keys"]["default"]}
        runner = {"RUNNER_TEMP": str(folder), "GITHUB_OUTPUT": str(folder / "output"),
                  "GITHUB_STEP_SUMMARY": str(folder / "summary"), "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
        for name in ("output", "summary"):
            (folder / name).write_text("", encoding="utf-8")
        subprocess.run([sys.executable, "-m", "venv", folder / "sortition-verify"], check=True)
        self.give_packages(folder / "sortition-verify")
        for step in action["runs"]["steps"]:
            self.assertEqual(step["shell"], "bash")
            words = {name: value for name, value in step["env"].items()}
            for name, value in given.items():
                words = {key: word.replace(name, value) for key, word in words.items()}
            self.assertNotIn("${{", step["run"] + "".join(words.values()))
            done = run("bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"], **runner, **words)
            if step["name"] == "Install":
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done, *((folder / name).read_text(encoding="utf-8") for name in ("output", "summary"))

    def test_action_fails_for_what_is_no_archive(self):
        done, output, summary = self.action(str(SOURCE / "kernels/law/vectors/golden*.json"))
        self.assertEqual(done.returncode, 4, done.stderr)
        self.assertIn("    PROBLEM damaged: no gzip", summary)
        (report,) = json.loads(pathlib.Path(output.split("=", 1)[1].strip()).read_text(encoding="utf-8"))
        self.assertEqual(report["problems"][0]["name"], "damaged")
        self.assertEqual(self.action(str(SOURCE / "nothing*.tar.gz"))[0].returncode, 1)

    def test_action_passes_for_a_published_archive(self):
        done, _, summary = self.action(str(SOURCE / "docs/proof/*.tar.gz"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no problem found", summary)


if __name__ == "__main__":
    unittest.main()
