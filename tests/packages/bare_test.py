#!/usr/bin/env python3
"""Packages, wheels and the README's ways to a token, in bare roots of Debian: `./dev test packages`. Needs root."""

import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import first_contact
from bare_root import ENVIRONMENT, SOURCE, BareRoot

PACKAGES = SOURCE / "build/package"
WHEELS = SOURCE / "build/wheel"
INSTALL = (SOURCE / "docs/install.md").read_text(encoding="utf-8")
SERVER_SUITE = "bookworm"  # the Debian that the packages are built for
# Debian's suites with the minor version of their Python.
PYTHONS = {"bookworm": 11, "trixie": 13, "testing": 14}
UNIT = "usr/lib/systemd/system/sortitiond.service"
APT_INSTALL = "apt-get --quiet install --yes --no-install-recommends"
MOST_EXPOSURE = 15  # on systemd-analyze's scale from 0 to 100
TOKEN = "3"  # drawn from the README's row and seed

# A program's package, and cargo's settings: crates come from Debian's packages.
CARGO_TOML = """
[package]
name = "draw_same"
version = "0.0.0"
edition = "2021"

[lib]
name = "sortition_tests"
path = "lib.rs"

[[bin]]
name = "draw_same"
path = "draw_same.rs"

[dependencies]
sortition = "0.1"
"""
CARGO_CONFIG = """
[source.crates-io]
replace-with = "debian"

[source.debian]
directory = "/usr/share/cargo/registry"
"""

# Podman's settings where root may not raise limits and both versions of cgroups are mounted, as in a machine that is a
# container itself.
PODMAN = """
[engine]
runtime = "runc"

[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
"""
IMAGE_SECONDS = 60  # in which a container starts and draws

# Draws the README's token and says where the libraries lie.
DRAW = """
import numpy, sortition.local as local
sampler = local.Sampler()
print("token", sampler.draw(sampler.open(vocabulary_size=4, seed=7), numpy.arange(4, dtype="f4")).token)
print(*{line.split()[-1] for line in open("/proc/self/maps") if "grpc" in line or "hwy" in line}, sep="\\n")
"""


def debs(*names):
    """The files of the packages."""
    return [next(PACKAGES.glob(f"{name}_*.deb")) for name in names]


def install(root, *names):
    root.copy_in(debs(*names), "root/dist")
    root.run(f"apt-get --quiet update && {APT_INSTALL} ./dist/*.deb", network=True)


def unit():
    """The settings of the installed unit, the last of each name."""
    lines = (SOURCE / "deploy/packages/sortitiond.service").read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


class InRoot(unittest.TestCase):
    def bare_root(self, suite):
        root = BareRoot(suite)
        self.addCleanup(root.close)
        return root


class ServerPackage(InRoot):
    def test_serves_as_its_unit_says_and_leaves_nothing(self):
        root = self.bare_root(SERVER_SUITE)
        before = root.files()
        install(root, "sortition", "sortition-tools")
        added = root.files() - before

        settings = unit()
        start = f"setpriv --reuid={settings['User']} --regid={settings['Group']} --clear-groups --no-new-privs"
        # The environment is a pod's that it shares with a worker.
        said = root.run(f"""
            install -d -o {settings['User']} -g {settings['Group']} /run/{settings['RuntimeDirectory']}
            SORTITION_VLLM=unix:/run/sortition/sortition.sock {start} {settings['ExecStart']} 2>log & server=$!
            for try in $(seq 100); do sortitionctl health >/dev/null 2>&1 && break; sleep 0.1; done
            printf '\\0\\0\\0\\0\\0\\0\\200\\077\\0\\0\\0\\100\\0\\0\\100\\100' >row
            sortitionctl sample row --dtype=f32 --seed=7
            sortitionctl --server=unix:/run/sortition/sortition.sock sample row --dtype=f32 --seed=7
            sortitionctl --server=unix:/run/sortition/admin.sock admin clients >/dev/null && echo administers
            sortition_self_test --devices=cpu --rows=40 >/dev/null && echo self-tested
            kill -TERM $server && wait $server; echo ended with $?
            id sortition; stat -c '%U %a %n' /etc/sortition/sortitiond.flags""")
        self.assertEqual(re.findall(r"^token +(\d+)", said, re.MULTILINE), [TOKEN, TOKEN], said)
        for word in ("administers", "self-tested", "ended with 0", "root 644 /etc/sortition/sortitiond.flags"):
            self.assertIn(word, said)
        self.check_unit(root)

        root.run("apt-get --quiet remove --yes sortition")
        self.assertTrue((root.path / "etc/sortition/sortitiond.flags").exists(), "settings outlive a removal")
        root.run("apt-get --quiet purge --yes --autoremove sortition sortition-tools")
        left = {path for path in root.files() - before if path in added}
        # The linker's and apt's own, and the users that a removal keeps.
        self.assertEqual({path for path in left if "sortition" in path}, set())
        self.assertIn("sortition", (root.path / "etc/passwd").read_text(encoding="utf-8"))

    def check_unit(self, root):
        """systemd cannot run here, but it can judge the unit."""
        with tempfile.TemporaryDirectory() as folder:
            # The units that it refers to are this machine's, because a bare root has none.
            copy = pathlib.Path(folder, "sortitiond.service")
            copy.write_text((root.path / UNIT).read_text(encoding="utf-8").replace("=/usr/", f"={root.path}/usr/"),
                            encoding="utf-8")
            done = subprocess.run(["systemd-analyze", "verify", "--man=no", copy], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, check=False)
        complaints = [line for line in done.stdout.splitlines() if "sortitiond" in line]
        self.assertEqual((done.returncode, complaints), (0, []))
        done = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={MOST_EXPOSURE}",
                               root.path / UNIT], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stdout)


class Programs(InRoot):
    """Programs that are built and run with the packages and compilers."""

    def test_c_rust_and_python_draw_the_same_text(self):
        root = self.bare_root(SERVER_SUITE)
        install(root, "sortition", "libsortition-c0", "libsortition-c-dev", "librust-sortition-dev")
        root.copy_in(WHEELS.glob("sortition-*-cp311-*.whl"), "root/dist")
        root.run(f"{APT_INSTALL} gcc libc6-dev pkg-config cargo python3-venv", network=True)
        root.run("python3 -m venv venv && venv/bin/pip install dist/*.whl", network=True)
        root.copy_in([SOURCE / "tests/packages/draw_same.py", SOURCE / "tests/c/draw_same.c",
                      SOURCE / "tests/c/testing.h"], "root")
        root.copy_in([SOURCE / "tests/rust/draw_same.rs", SOURCE / "tests/rust/lib.rs"], "root/crate")
        (root.path / "root/crate/Cargo.toml").write_text(CARGO_TOML, encoding="utf-8")
        (root.path / "root/.cargo").mkdir()
        (root.path / "root/.cargo/config.toml").write_text(CARGO_CONFIG, encoding="utf-8")
        said = root.run("""
            cc draw_same.c $(pkg-config --cflags --libs sortition_c) -o draw_in_c
            cargo build --quiet --offline --manifest-path crate/Cargo.toml --target-dir made
            sortitiond --listen=127.0.0.1:50051 2>log & server=$!
            until grep -q '"event":"serving"' log; do sleep 0.1; done
            for program in ./draw_in_c made/debug/draw_same 'venv/bin/python3 draw_same.py'; do
              for target in '' 127.0.0.1:50051; do
                $program $target >text; wc -l <text; sha256sum <text
              done
            done
            kill -TERM $server && wait $server""").split()
        self.assertEqual(said[::3], ["40"] * 6, said)
        self.assertEqual(len(set(said[1::3])), 1, said)

    def test_cpp_programs_find_both_libraries(self):
        root = self.bare_root(SERVER_SUITE)
        libraries = sorted(file.name.split("_")[0] for file in PACKAGES.glob("libsortition*.deb"))
        install(root, "sortition", *libraries)
        root.run(f"{APT_INSTALL} g++ cmake make", network=True)
        for name in ("library", "client"):
            outside = SOURCE / "tests" / name / "outside"
            root.copy_in((file for file in outside.iterdir() if file.is_file()), f"root/{name}")
        said = root.run("""
            set -e
            for name in library client; do
              cmake -S $name -B made/$name >/dev/null && cmake --build made/$name >/dev/null
            done
            made/library/outside && made/client/local
            sortitiond --listen=127.0.0.1:50051 2>log & server=$!
            until grep -q '"event":"serving"' log; do sleep 0.1; done
            made/client/worker 127.0.0.1:50051
            kill -TERM $server && wait $server
            ldd made/client/worker""")
        self.assertRegex(said, r"(?m)^logprob -0\.6931 at temperature 0\.8$")
        here, again = re.search(r"(?m)^tokens (\d+) (\d+)$", said).groups()
        there = re.search(r"(?m)^token (\d+)$", said)[1]
        self.assertEqual((here, again), (there, there), said)
        loaded = set(re.findall(r"(lib[^/ ]+|ld-linux[^/ ]+\.so\.2)(?= =>| \()", said))
        listed = re.search(r"## What they load\n.*?```\n(.*?)```", INSTALL, re.DOTALL)[1].split()
        self.assertEqual({name for name in loaded if not name.startswith("libabsl_")}, set(listed))


class Wheel(InRoot):
    def draws(self, suite):
        minor = PYTHONS[suite]
        tag = f"cp3{minor}-cp3{minor}" if minor < 12 else "cp312-abi3"
        root = self.bare_root(suite)
        root.copy_in(WHEELS.glob(f"sortition-*-{tag}-*.whl"), "root/dist")
        root.run(f"apt-get --quiet update && {APT_INSTALL} python3-venv", network=True)
        root.run("python3 -m venv venv && venv/bin/pip install dist/*.whl", network=True)
        (root.path / "root/draw.py").write_text(DRAW, encoding="utf-8")
        said = root.run("venv/bin/python3 --version; venv/bin/python3 draw.py")
        self.assertIn(f"Python 3.{minor}.", said)
        self.assertIn(f"token {TOKEN}\n", said)
        libraries = [line for line in said.splitlines() if line.startswith("/")]
        self.assertTrue(libraries)
        self.assertEqual([path for path in libraries if not path.startswith(f"{ENVIRONMENT['HOME']}/venv/")], [])

    def test_draws_on_debian_12(self):
        self.draws("bookworm")

    def test_draws_on_debian_13(self):
        self.draws("trixie")

    def test_draws_on_debian_testing(self):
        self.draws("testing")


class FirstContact(InRoot):
    @functools.cached_property
    def ways(self):
        return first_contact.ways()

    def test_pip(self):
        root = self.bare_root("bookworm")
        root.copy_in(WHEELS.glob("*.whl"), "root/dist")
        self.check(root, "pip")

    def test_deb(self):
        root = self.bare_root(SERVER_SUITE)
        root.copy_in(debs("sortition", "sortition-tools"), "root/dist")
        self.check(root, "deb")

    def test_image(self):
        """From this clone, on this machine: a bare root cannot run containers."""
        archive = SOURCE / "sortition.tar"
        self.assertFalse(archive.exists())
        self.addCleanup(archive.unlink, missing_ok=True)
        prepare, draw = first_contact.split(self.ways["image"])
        subprocess.run(["sh", "-ec", prepare], cwd=SOURCE, check=True)
        with tempfile.TemporaryDirectory() as folder:
            settings = pathlib.Path(folder, "containers.conf")
            settings.write_text(PODMAN, encoding="utf-8")
            environment = {**os.environ, "CONTAINERS_CONF": str(settings)}
            try:
                said = subprocess.run(["timeout", str(IMAGE_SECONDS), "sh", "-ec", draw], cwd=SOURCE, check=True,
                                      env=environment, stdout=subprocess.PIPE, text=True).stdout
            finally:
                subprocess.run(["podman", "rm", "--force", "--time=5", "sortition"], env=environment, check=False,
                               stdout=subprocess.DEVNULL)
        self.assertRegex(said, rf"(?m)^(token +)?{TOKEN}$")

    def check(self, root, way):
        prepare, draw = first_contact.split(self.ways[way])
        root.run(prepare, network=True)
        self.assertRegex(root.run(draw), rf"(?m)^(token +)?{TOKEN}$")


if __name__ == "__main__":
    sys.dont_write_bytecode = True
    # A word chooses the tests whose names contain it.
    unittest.main(argv=[sys.argv[0], "-v", *(f"-k={word}" for word in sys.argv[1:])])
