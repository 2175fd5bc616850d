#!/usr/bin/env python3
"""Clang's thread-safety analysis over the sources that lock: every GUARDED_BY and REQUIRES is checked.

`thread_safety.py --compiler clang++ BUILD_FOLDER` reads BUILD_FOLDER/compile_commands.json, keeps the sources of
FOLDERS that mention a mutex themselves or through a header of this tree, and parses each with clang; nothing is
generated. Before that it makes sure that the analysis finds a planted unguarded access. Exits with 1 on any finding.
"""

import argparse
import concurrent.futures
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from typing import List, Tuple

FOLDERS = ("service", "devices", "client", "monitoring")
ANALYSIS = ["-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"]
LOCKS = re.compile(r"\b(?:Mutex|MutexLock|ABSL_GUARDED_BY)\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)

PLANTED = """
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
struct Counter {
  absl::Mutex mutex;
  int value ABSL_GUARDED_BY(mutex) = 0;
  int Read() { return value; }
};
"""


@functools.lru_cache(maxsize=None)
def mentions_lock(path: str) -> bool:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    included = [name for name in INCLUDE.findall(text) if os.path.exists(name)]
    return bool(LOCKS.search(text)) or any(map(mentions_lock, included))


def parse_flags(command: str) -> List[str]:
    """The part of a compile command that decides how the source parses; warnings and output stay behind."""
    arguments = iter(shlex.split(command))
    flags = []
    for argument in arguments:
        if argument == "-isystem":
            flags += [argument, next(arguments)]
        elif argument.startswith(("-I", "-D", "-std=", "-m")):
            flags.append(argument)
    return flags


def compiled_at_once(path: str) -> List[str]:
    """The sources that a unity build's file stands for; any other file alone."""
    if os.path.basename(os.path.dirname(path)) != "Unity":
        return [path]
    with open(path, encoding="utf-8") as file:
        return INCLUDE.findall(file.read())


def sources(build_folder: str) -> List[Tuple[str, List[str]]]:
    with open(os.path.join(build_folder, "compile_commands.json"), encoding="utf-8") as file:
        entries = json.load(file)
    found = {}
    for entry in entries:
        for file in compiled_at_once(os.path.join(entry["directory"], entry["file"])):
            path = os.path.relpath(file)
            if path.split(os.sep)[0] in FOLDERS and mentions_lock(path):
                found[path] = parse_flags(entry["command"])
    return sorted(found.items())


def sees_planted_defect(compiler: str) -> bool:
    command = [compiler, "-std=c++20", *ANALYSIS, "-x", "c++", "-"]
    result = subprocess.run(command, input=PLANTED, stderr=subprocess.PIPE, universal_newlines=True)
    return result.returncode != 0 and "-Wthread-safety" in result.stderr


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compiler", required=True)
    parser.add_argument("build_folder")
    options = parser.parse_args()

    if not sees_planted_defect(options.compiler):
        print(f"{options.compiler} does not see a planted unguarded access", file=sys.stderr)
        return 1

    def analyse(source: Tuple[str, List[str]]) -> bool:
        path, flags = source
        return subprocess.run([options.compiler, *flags, *ANALYSIS, path]).returncode == 0

    found = sources(options.build_folder)
    if not found:
        print(f"{options.build_folder} compiles no source that locks", file=sys.stderr)
        return 1
    with concurrent.futures.ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        passed = list(pool.map(analyse, found))
    print(f"thread safety: {len(found)} sources, {passed.count(False)} with findings", file=sys.stderr)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
