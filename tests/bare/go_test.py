"""bare_worker.go is built and runs as worker_test.py runs the worker in Python.

Ends with status 77, which CTest reports as skipped, where there are no Go, no protoc-gen-go or no sources of grpc-go
(Debian: golang-go protoc-gen-go golang-google-grpc-dev).
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SOURCES = pathlib.Path("/usr/share/gocode/src/google.golang.org")
for what, found in (("go", shutil.which("go")), ("protoc-gen-go", shutil.which("protoc-gen-go")),
                    ("source of grpc-go", (SOURCES / "grpc").is_dir())):
    if not found:
        print(f"there is no {what} (apt-get install golang-go protoc-gen-go golang-google-grpc-dev)")
        sys.exit(77)

# pylint: disable=wrong-import-position
from worker_test import SOURCE, WorkerTest  # runs here with the program in Go

FOLDER = pathlib.Path(os.environ["TEST_GO_FOLDER"])
PROGRAM = SOURCE / "client/examples/bare_worker.go"
CODEC = SOURCE / "tests/bare/codec.go"


def run(*command):
    environment = {"PATH": os.environ["PATH"], "HOME": str(FOLDER), "GO111MODULE": "off", "GOCACHE": f"{FOLDER}/cache",
                   "GOPATH": f"{FOLDER}:{SOURCES.parent.parent}"}
    done = subprocess.run(command, env=environment, cwd=FOLDER, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command}: {done.stdout}{done.stderr}")
    return done.stdout


def build():
    """Makes the messages as the program's first lines say, and builds it."""
    package = FOLDER / "src/bare_worker"
    package.mkdir(parents=True, exist_ok=True)
    shutil.copy(PROGRAM, package)
    shutil.copy(CODEC, package)
    said = re.search(r"//\tprotoc (.*?)\n//\tbare_worker", PROGRAM.read_text(encoding="utf-8"), re.DOTALL).group(1)
    arguments = re.sub(r"\\\n//", "", said).split()
    arguments[:2] = [f"--proto_path={SOURCE}/proto", f"--go_out={FOLDER}/src"]
    run(os.environ["TEST_PROTOC"], *arguments)
    run("go", "build", "-o", str(FOLDER / "bare_worker"), "bare_worker")


class GoTest(unittest.TestCase):
    def test_format(self):
        run("go", "vet", "bare_worker")
        self.assertEqual(run("gofmt", "-l", str(PROGRAM), str(CODEC)), "")

    def test_figures_of_grpc_go(self):
        """docs/without-client.md names them."""
        backoff, channel, names = ((SOURCES / "grpc" / path).read_text(encoding="utf-8") for path in (
            "backoff/backoff.go", "clientconn.go", "internal/resolver/dns/dns_resolver.go"))
        values = re.findall(r"^\t(?:BaseDelay|Multiplier|Jitter|MaxDelay): +([\d.]+)", backoff, re.MULTILINE)
        self.assertEqual([float(value) for value in values], [1, 1.6, 0.2, 120])
        self.assertIn("defaultClientMaxReceiveMessageSize = 1024 * 1024 * 4\n", channel)
        self.assertRegex(names, r"\b(?:minDNSResRate|MinResolutionInterval) = 30 \* time.Second\n")


if __name__ == "__main__":
    build()
    os.environ["TEST_BARE_WORKER"] = str(FOLDER / "bare_worker")
    unittest.main()
