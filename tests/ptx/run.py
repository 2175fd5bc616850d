#!/usr/bin/env python3
"""Runs every case of the CUDA emulator's suite in the PTX interpreter, in several schedules, and judges the whole.

usage: run.py BUILD_FOLDER [--filter=FILTER] [--schedules=3] [--processes=CORES]

Each case is a process, whose output is left in BUILD_FOLDER/ptx_logs. It ends with 0 if every case has passed in every
schedule, every planted fault was found, every kernel of every module was launched, and every case of the emulator's
suite was there. With a filter (as GoogleTest has it) the last two are not asked.
"""

import argparse
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time
from typing import Dict, List, NamedTuple, Set, Tuple

# Binaries over the interpreter, each with the binary over the emulator that has the same cases.
BINARIES = {"ptx_kernel_test": "cuda_test", "ptx_library_test": "library_test"}
# Cases over the emulator that launch no kernel, by the beginning of the name, and why.
WITHOUT_KERNELS = {
    "Emulator": "tests the emulator",
    "CudaAssembly.": "reads the text of the modules",
    "CudaDriver.DeclarationsEqualCudaHeader": "compares declarations",
    "NoiseBound.": "compares arithmetic on the host",
    "WeighBounds.": "runs a part of a kernel",
    "Weigher.": "compares arithmetic on the host",
    "Library.": "samples on the processor, or looks for a driver",
}
# Planted faults do not depend on the schedule.
ONCE = re.compile(r"^PtxFaults\.|/PtxSurvey\.")
# Start first, so that no long case runs alone at the end.
LONG = ("LargestVocabulary", "UsualVocabularies", "PublishedRows", "SpecialRows", "MiddlingRows", "SmallRows",
        "CudaTexts", "PtxSurvey")
SECONDS = 3600  # time limit of a case


class Case(NamedTuple):
    binary: str
    name: str
    schedule: int


class Result(NamedTuple):
    case: Case
    passed: bool
    skipped: bool
    seconds: float
    output: str


def cases_of(binary: pathlib.Path, cases: str = "*") -> List[str]:
    """The names of a binary's cases."""
    said = subprocess.run([binary, "--gtest_list_tests", f"--gtest_filter={cases}"], capture_output=True, text=True,
                          check=True).stdout
    names, suite = [], ""
    for line in said.splitlines():
        word = line.split("#")[0].rstrip()
        if not word.startswith(" "):
            suite = word if word.endswith(".") else ""
        elif suite:
            names.append(suite + word.strip())
    return names


def run(folder: pathlib.Path, log: pathlib.Path, case: Case) -> Result:
    stem = log / f"{case.binary}-{case.name.replace('/', '-')}-{case.schedule}"
    environment = dict(os.environ, PTX_SCHEDULE=str(case.schedule), PTX_COVERAGE=f"{stem}.coverage")
    begin = time.monotonic()
    try:
        ended = subprocess.run([folder / "bin" / case.binary, f"--gtest_filter={case.name}"], text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, timeout=SECONDS)
        output, status = ended.stdout, ended.returncode
    except subprocess.TimeoutExpired as late:
        output, status = f"{late.stdout or ''}\nnot ended after {SECONDS} s", 1
    pathlib.Path(f"{stem}.log").write_text(output)
    ran = re.search(r"^\[  PASSED  \] 1 test\.", output, re.MULTILINE) is not None
    skipped = "[  SKIPPED ]" in output
    return Result(case, status == 0 and ran and not skipped, skipped, time.monotonic() - begin, output)


class Coverage:
    """Collects the instructions that processes have reached."""

    def __init__(self) -> None:
        self.reached: Dict[Tuple[str, str], int] = {}
        self.size: Dict[Tuple[str, str], int] = {}

    def add(self, path: pathlib.Path) -> None:
        module = ""
        for line in path.read_text().splitlines() if path.exists() else ():
            kind, *words = line.split(" ")
            if kind == "module":
                module = words[0]
                continue
            key = (module, words[0])
            self.size[key] = len(words[1])
            self.reached[key] = self.reached.get(key, 0) | int("0" + words[1], 2)

    def launched(self) -> Set[Tuple[str, str]]:
        return {key for key, bits in self.reached.items() if bits}

    def instructions(self) -> Tuple[int, int]:
        return sum(bin(bits).count("1") for bits in self.reached.values()), sum(self.size.values())

    def missed(self) -> List[str]:
        return sorted(f"{name} of {module}.cu" for (module, name), bits in self.reached.items() if not bits)


def entries_of(modules: List[pathlib.Path]) -> Set[Tuple[str, str]]:
    """Module and name of each kernel in the text of the modules, called NAME_ARCHITECTURE.ptx."""
    return {(path.stem.rsplit("_", 1)[0], name) for path in modules
            for name in re.findall(r"^\.visible \.entry (\w+)\(", path.read_text(), re.MULTILINE)}


def without_reason(wanted: List[str], there: List[str]) -> List[str]:
    """Cases over the emulator that are missing without a reason."""
    return [case for case in wanted if case not in there and not case.startswith(tuple(WITHOUT_KERNELS))]


def judge(results: List[Result], launched: Set[Tuple[str, str]], entries: Set[Tuple[str, str]],
          absent: List[str]) -> List[str]:
    """Returns a line for each finding."""
    wrong = [f"{r.case.name} was skipped" if r.skipped else f"{r.case.name} failed in schedule {r.case.schedule}"
             for r in results if not r.passed]
    wrong += [f"kernel {name} of {module}.cu was never launched" for module, name in sorted(entries - launched)]
    wrong += [f"{case} does not run under the interpreter" for case in absent]
    return wrong if results else ["no case has run"]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--filter", default="")
    parser.add_argument("--schedules", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args()
    log = options.folder / "ptx_logs"
    log.mkdir(exist_ok=True)
    for old in log.iterdir():
        old.unlink()

    cases: List[Case] = []
    absent: List[str] = []
    for binary, emulated in BINARIES.items():
        names = cases_of(options.folder / "bin" / binary, options.filter or "*")
        cases += [Case(binary, name, schedule) for schedule in range(1, options.schedules + 1) for name in names
                  if schedule == 1 or not ONCE.search(name)]
        if not options.filter:
            absent += without_reason(cases_of(options.folder / "bin" / emulated), names)

    def order(case: Case) -> Tuple[int, int]:
        at = next((i for i, part in enumerate(LONG) if part in case.name), len(LONG))
        return at, case.schedule

    begin = time.monotonic()
    results: List[Result] = []
    with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
        running = [pool.submit(run, options.folder, log, case) for case in sorted(cases, key=order)]
        for future in concurrent.futures.as_completed(running):
            result = future.result()
            results.append(result)
            print(f"{'passed' if result.passed else 'skipped' if result.skipped else 'FAILED'} "
                  f"{result.seconds:7.1f} s  schedule {result.case.schedule}  {result.case.name}", flush=True)
            if not result.passed:
                print(result.output, flush=True)

    coverage = Coverage()
    for path in sorted(log.glob("*.coverage")):
        coverage.add(path)
    modules = [pathlib.Path(path) for path in (options.folder / "ptx_modules").read_text().split()]
    entries = entries_of(modules) if not options.filter else set()
    wrong = judge(results, coverage.launched(), entries, absent)

    output = "\n".join(result.output for result in results)
    reached, size = coverage.instructions()
    print(f"\n{len({r.case.name for r in results})} cases in {options.schedules} schedules: "
          f"{sum(r.passed for r in results)} of {len(results)} runs passed, in {time.monotonic() - begin:.0f} s, "
          f"{sum(r.seconds for r in results):.0f} s of processes")
    print(f"planted faults: {len(re.findall('^planted: ', output, re.MULTILINE))} named ones found")
    for line in re.findall("^survey: .*", output, re.MULTILINE):
        print(line)
    print(f"kernels: {len(entries & coverage.launched())} of {len(entries)} launched; instructions: "
          f"{reached} of {size} reached")
    for name in coverage.missed():
        print(f"never called: {name}")
    for prefix, why in WITHOUT_KERNELS.items():
        print(f"not run: {prefix.rstrip('.')}: {why}")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
