#!/usr/bin/env python3
"""Makes wheels that bring every library that they need (manylinux). `./dev wheel` calls it.

    wheels.py BUILD_FOLDER OUTPUT_FOLDER TAG...

TAG is cp310, cp311, ..., or abi3: one wheel for 3.12 and later. The module for this Python lies in the staged package,
those for others in BUILD_FOLDER/python-TAG. auditwheel copies the libraries into the wheel under names of their own,
and names the oldest C library that the wheel runs with.
"""

import pathlib
import shutil
import subprocess
import sys
import tempfile

MOST_BYTES = 15_000_000
LICENCE = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"
# Parts of every manylinux platform.
OF_THE_PLATFORM = ("libc.", "libm.", "libgcc_s.", "libstdc++.", "libz.", "ld-linux")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"wheels: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def libraries_of(module):
    """The libraries that the module loads, except the platform's."""
    loaded = (line.split() for line in run("ldd", module).splitlines() if " => /" in line)
    return [pathlib.Path(words[2]).resolve() for words in loaded if not words[0].startswith(OF_THE_PLATFORM)]


def packages_of(libraries):
    """The Debian packages of the libraries. A library that was built by hand has none, and no licence text here."""
    # dpkg knows some of them under /lib, a link to /usr/lib.
    patterns = [f"*/{library.parent.name}/{library.name}" for library in libraries]
    found = subprocess.run(["dpkg", "--search", *patterns], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           check=False).stdout
    return sorted({line.split(":")[0] for line in found.splitlines()})


def add_licences(module, folder):
    """Copies the licence texts of the libraries that the wheel brings."""
    folder.mkdir()
    shutil.copy(LICENCE, folder.parent)
    for package in packages_of(libraries_of(module)):
        shutil.copy(f"/usr/share/doc/{package}/copyright", folder / f"{package}.txt")


def make(build, output, tag):
    own = f"cp3{sys.version_info.minor}"
    with tempfile.TemporaryDirectory() as temporary:
        stage, plain = pathlib.Path(temporary, "stage"), pathlib.Path(temporary, "plain")
        shutil.copytree(build / "python", stage, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__"))
        if tag != own:
            (staged,) = (stage / "sortition").glob("_native.*.so")
            staged.unlink()
            (other,) = (build / f"python-{tag}").glob("_native*.so")
            shutil.copy(other, stage / "sortition")
        (module,) = (stage / "sortition").glob("_native*.so")
        add_licences(module, stage / "licences")
        run(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir", plain,
            stage)
        (wheel,) = plain.glob("*.whl")
        if tag != own:
            names = ("cp312", "abi3") if tag == "abi3" else (tag, tag)
            run(sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag", names[0], "--abi-tag", names[1], wheel)
            (wheel,) = plain.glob("*.whl")
        repaired = pathlib.Path(temporary, "repaired")
        run(sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", repaired, wheel)
        (wheel,) = repaired.glob("*.whl")
        size = wheel.stat().st_size
        if "manylinux" not in wheel.name:
            sys.exit(f"wheels: {wheel.name} is of no manylinux platform")
        if size > MOST_BYTES:
            sys.exit(f"wheels: {wheel.name} has {size} bytes, at most {MOST_BYTES}")
        output.mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, output)
        print(f"{output / wheel.name}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    for wheel_tag in sys.argv[3:]:
        make(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), wheel_tag)
