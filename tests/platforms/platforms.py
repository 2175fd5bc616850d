#!/usr/bin/env python3
"""Builds and tests HEAD as a user does, on bare distributions: `platforms.py [NAME...] [--json FILE] [--fresh]`.

Each platform has a root, a folder that mmdebstrap makes and that is kept in build/platforms/NAME. A clean clone of HEAD
is copied into it. There the two commands of README.md run, which install what they lack, and a table tells the
versions, the times and the tests. Mounts belong to a namespace that ends with the command. A root reaches package
registries as this machine does: the archive, settings of apt and pip, certificates and variables are copied.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import Dict, List, NamedTuple, Optional

# A command that has not ended by then is killed with all its processes.
TIMEOUT_SECONDS = 90 * 60

FOLDER = "build/platforms"
CACHE_SIZE = "12G"  # of the compiler cache that all roots share
SOURCES = "src"  # where the clone lies in a root

# Adds experimental's gRPC to a root of unstable.
NEWEST_GRPC = "tests/platforms/newest_grpc.sh"


class Platform(NamedTuple):
    suite: str
    compiler: str  # of C++; "c++" is what ./dev installs
    package: str  # that has it
    setup: str  # script that mmdebstrap runs before it installs packages


def _platforms() -> Dict[str, Platform]:
    suites = {"debian12": "bookworm", "debian13": "trixie", "testing": "testing", "experimental": "unstable"}
    found = {}
    for name, suite in suites.items():
        setup = NEWEST_GRPC if name == "experimental" else ""
        found[f"{name}-gcc"] = Platform(suite, "c++", "", setup)
        # The default of Debian 12 is older than the C++20 that the sources are written in.
        clang = "clang-16" if name == "debian12" else "clang"
        found[f"{name}-clang"] = Platform(suite, clang.replace("clang", "clang++"), clang, setup)
    return found


PLATFORMS = _platforms()

# The columns of the table that are versions: the heading, and the package or the command that tells.
PACKAGES = {
    "Highway": "libhwy-dev",
    "gRPC": "libgrpc++-dev",
    "Protobuf": "libprotobuf-dev",
    "Abseil": "libabsl-dev",
    "Python": "python3",
    "CMake": "cmake",
}

# Variables that tell programs how to reach a registry.
REACH = re.compile(r"_proxy$|^PIP_|^SSL_CERT_|_CA_BUNDLE$", re.IGNORECASE)

# Runs in a new mount namespace and a new process namespace. Both end with the command.
ENTER = """
set -e
root=$1
shift
mount --bind "$root" "$root"  # programs in it make namespaces, which need a root that is a mount
mount --rbind /dev "$root/dev"
mount -t tmpfs shm "$root/dev/shm"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --bind "$1" "$root/root/.cache/ccache"
shift
exec chroot "$root" "$@"
"""


def run(command: List[str], **options) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True, **options).stdout


def say(text: str) -> None:
    print(f"platforms: {text}", file=sys.stderr, flush=True)


def package_version(full: str) -> str:
    """Returns upstream's part of a package's version: "1:2.3.4-5+b1" is "2.3.4"."""
    return re.sub(r"-[^-]*$", "", full.split(":", 1)[-1])


def tests_in(log: str) -> Optional[Dict]:
    """Returns CTest's summary at the end of its output; None if it has not come that far."""
    summary = re.search(r"(\d+)% tests passed, (\d+) tests failed out of (\d+)", log)
    if summary is None:
        return None
    skipped = re.findall(r"^\s+\d+ - (\S+).* \((?:Skipped|Disabled)\)$", log, re.MULTILINE)
    not_passed = re.findall(r"^\s+\d+ - (\S+).* \([A-Z][A-Za-z ]+\)$", log, re.MULTILINE)
    failed = [name for name in not_passed if name not in skipped]
    return {
        "passed": int(summary[3]) - int(summary[2]) - len(skipped),
        "failed": int(summary[2]),
        "skipped": len(skipped),
        "failed_tests": failed,
        "skipped_tests": skipped,
    }


def left_out_in(log: str) -> List[str]:
    """Returns the parts that the last command left out: ./dev demo builds less than ./dev test."""
    log = re.split(r"^\$ ", log, flags=re.MULTILINE)[-1]
    return sorted(set(re.findall(r"^Left out: (.*)$", log, re.MULTILINE)))


def table_of(results: List[Dict]) -> str:
    """Returns the results as a table in Markdown."""
    columns = ["platform", "compiler", *PACKAGES, "demo s", "test s", "passed", "failed", "skipped"]
    rows = [columns, ["---"] * len(columns)]
    for result in results:
        tests = result.get("tests") or {}
        cells = [result["platform"], result.get("compiler", "")]
        cells += [result.get("versions", {}).get(name, "") for name in PACKAGES]
        for command in ("demo", "test"):
            outcome = result.get(command)
            cells.append("" if outcome is None else f"{outcome['seconds']:.0f}" if outcome["status"] == 0 else "failed")
        cells += [str(tests.get(name, "")) for name in ("passed", "failed", "skipped")]
        rows.append(cells)
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


class Root:
    """A bare distribution in a folder, and how to run commands in it."""

    def __init__(self, name: str) -> None:
        self.platform = PLATFORMS[name]
        self.path = os.path.abspath(os.path.join(FOLDER, name))
        self.log = self.path + ".log"
        self.cache = os.path.abspath(os.path.join(FOLDER, "ccache"))

    def make(self) -> None:
        settings = [line for line in run(["apt-config", "dump", "--no-empty"]).splitlines()
                    if re.match(r"Acquire::(http|https|Check|Retries|Force)", line)]
        archives = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Label: Debian"]).split()
        suite = self.platform.suite
        sources = [f"deb {archives[0]} {suite} main"] if archives else []
        # Services that come with packages are not started.
        hooks = ["--customize-hook=printf '#!/bin/sh\\nexit 101\\n' > \"$1/usr/sbin/policy-rc.d\"",
                 '--customize-hook=chmod 755 "$1/usr/sbin/policy-rc.d"']
        if self.platform.setup:
            hooks.append(f"--setup-hook={shlex.quote(os.path.abspath(self.platform.setup))} \"$1\"")
        partial = self.path + ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(["mmdebstrap", "--mode=root", "--variant=apt", "--include=ca-certificates,git",
                        *(f"--aptopt={line}" for line in settings), *hooks, suite, partial, *sources],
                       check=True, timeout=TIMEOUT_SECONDS)
        os.rename(partial, self.path)

    def take_over(self) -> None:
        """Copies the files that this machine's programs read to reach a registry."""
        certificates = "usr/local/share/ca-certificates"
        shutil.copytree("/" + certificates, os.path.join(self.path, certificates), dirs_exist_ok=True)
        for file in ("/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", os.path.expanduser("~/.config/pip/pip.conf")):
            if os.path.isfile(file):
                to = self.path + file.replace(os.path.expanduser("~"), "/root", 1)
                os.makedirs(os.path.dirname(to), exist_ok=True)
                if os.path.lexists(to):
                    os.remove(to)
                shutil.copyfile(file, to)
        self.enter(["update-ca-certificates"])

    def clone(self) -> None:
        sources = os.path.join(self.path, SOURCES)
        shutil.rmtree(sources, ignore_errors=True)
        run(["git", "clone", "--quiet", "--no-hardlinks", "--depth=1", "file://" + os.getcwd(), sources])

    def enter(self, command: List[str], with_cache: bool = True) -> int:
        """Runs a command in the root, its output appended to the log. Returns its exit status; 124 for a timeout."""
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
                       "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "CCACHE_MAXSIZE": CACHE_SIZE}
        environment.update({name: value for name, value in os.environ.items() if REACH.search(name)})
        if self.platform.package:
            environment["CXX"] = self.platform.compiler
        if not with_cache:
            environment["CCACHE_DISABLE"] = "1"
        os.makedirs(self.cache, exist_ok=True)
        os.makedirs(os.path.join(self.path, "root/.cache/ccache"), exist_ok=True)
        with open(self.log, "a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n")
            log.flush()
            try:
                return subprocess.run(
                    ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation=private",
                     "sh", "-c", ENTER, "enter", self.path, self.cache, *command],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                    timeout=TIMEOUT_SECONDS).returncode
            except subprocess.TimeoutExpired:
                return 124

    def dev(self, command: str, with_cache: bool) -> Dict:
        begin = time.monotonic()
        status = self.enter(["sh", "-c", f"cd /{SOURCES} && ./dev {command}"], with_cache)
        return {"status": status, "seconds": round(time.monotonic() - begin, 1)}

    def output(self, command: List[str]) -> str:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
        return run(["chroot", self.path, *command], env=environment).strip()

    def compiler(self) -> str:
        """Returns name and version, as "GCC 12.2.0"."""
        first = self.output([self.platform.compiler, "--version"]).splitlines()[0]
        version = re.search(r"\d+\.\d+\.\d+", first)
        return ("Clang " if "clang" in first else "GCC ") + (version[0] if version else first)

    def versions(self) -> Dict[str, str]:
        query = ["dpkg-query", "--show", "--showformat=${Version}"]
        return {name: package_version(self.output([*query, package])) for name, package in PACKAGES.items()}


def try_platform(name: str, fresh: bool, with_cache: bool) -> Dict:
    root = Root(name)
    if fresh:
        shutil.rmtree(root.path, ignore_errors=True)
    os.makedirs(FOLDER, exist_ok=True)
    with open(root.log, "w", encoding="utf-8"):
        pass  # the log is of this run
    if not os.path.isdir(root.path):
        say(f"{name}: making the root")
        root.make()
    root.take_over()
    root.clone()
    result: Dict = {"platform": name}
    if root.platform.package:
        install = f"apt-get -qq update && apt-get -qq --yes --no-install-recommends install {root.platform.package}"
        if root.enter(["sh", "-c", install]) != 0:
            raise RuntimeError(f"{name}: cannot install {root.platform.package}; {root.log} says why")
    for command in ("demo", "test"):
        say(f"{name}: ./dev {command}")
        result[command] = root.dev(command, with_cache)
        if result[command]["status"] != 0:
            say(f"{name}: ./dev {command} failed; {root.log} says why")
            if command == "demo":
                break
    with open(root.log, encoding="utf-8", errors="replace") as file:
        log = file.read()
    result["tests"] = tests_in(log)
    result["left_out"] = left_out_in(log)
    try:
        result["compiler"] = root.compiler()
        result["versions"] = root.versions()
    except subprocess.CalledProcessError:
        say(f"{name}: its packages were not installed")
    return result


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="./dev platforms", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all of " + ", ".join(PLATFORMS))
    parser.add_argument("--json", metavar="FILE", help="writes the results there, too")
    parser.add_argument("--fresh", action="store_true", help="makes the roots again")
    parser.add_argument("--cold", action="store_true", help="compiles without the compiler cache of earlier runs")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in PLATFORMS]
    if unknown:
        parser.error(f"no platform {', '.join(unknown)}; there are: {', '.join(PLATFORMS)}")
    if os.geteuid() != 0:
        parser.error("roots are made and entered by root alone")

    # Raised as an exception, so that processes in a root are ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    results = []
    for name in options.names or PLATFORMS:
        results.append(try_platform(name, options.fresh, not options.cold))
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(results, file, indent=2)
                file.write("\n")
    print(table_of(results))
    for result in results:
        for text in result["left_out"]:
            print(f"{result['platform']}: left out: {text}")
        for state in ("failed", "skipped"):
            for test in (result["tests"] or {}).get(state + "_tests", []):
                print(f"{result['platform']}: {state}: {test}")
    for name in PLATFORMS:
        if options.names and name not in options.names:
            print(f"{name}: not asked for")
    return 0 if all(r.get("test", {}).get("status") == 0 for r in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
