"""Bare roots of Debian, without this project and its dependencies. Needs root."""

import os
import pathlib
import shutil
import subprocess
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
ROOTS = SOURCE / "build" / "roots"
# Ways to the package indexes of this machine. Its certificates keep another name than those that a package installs.
CERTIFICATES = "etc/machine-certificates.crt"
PASSED_ON = {name: value for name, value in os.environ.items()
             if name.startswith("PIP_") or name.lower() in ("http_proxy", "https_proxy", "no_proxy")}
if "PIP_CERT" in PASSED_ON:
    PASSED_ON["PIP_CERT"] = f"/{CERTIFICATES}"
# Mirrors may be older than a suite that is signed anew each week allows.
OPTIONS = {"testing": ["--aptopt=Acquire::Check-Valid-Until \"false\""]}
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
               "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}

# Runs in new namespaces of mounts and processes. $1 is the root, $2 "lo" where the network is the loopback alone.
ENTER = """
mount --make-rprivate / && mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" || exit 125
mkdir -p "$1/sys" && { [ "$2" != lo ] || ip link set lo up; } || exit 125
root=$1
shift 2
exec chroot "$root" "$@"
"""


class BareRoot:
    """A fresh root of the suite, at `path` until close()."""

    def __init__(self, suite):
        ROOTS.mkdir(parents=True, exist_ok=True)
        tarball = ROOTS / f"{suite}.tar"
        if not tarball.exists():
            unfinished = tarball.with_suffix(".part.tar")
            subprocess.run([SOURCE / "deploy/debian_root.sh", suite, unfinished, *OPTIONS.get(suite, [])], check=True)
            unfinished.rename(tarball)
        self.path = pathlib.Path(tempfile.mkdtemp(prefix=f"{suite}-", dir=ROOTS))
        subprocess.run(["tar", "--extract", "--file", tarball, "--directory", self.path, "--exclude=./dev/*"],
                       check=True)
        shutil.copy("/etc/resolv.conf", self.path / "etc/resolv.conf")
        if "PIP_CERT" in os.environ:
            shutil.copy(os.environ["PIP_CERT"], self.path / CERTIFICATES)

    def close(self):
        shutil.rmtree(self.path)

    def copy_in(self, files, folder):
        """Copies files of this machine into a folder of the root."""
        (self.path / folder).mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(file, self.path / folder)

    def run(self, script, network=False, check=True, environment=()):
        """Runs the script by sh and returns its output. Its processes end with it. Without `network` it has the
        loopback alone, so that its ports meet no other server."""
        namespaces = ["--mount", "--pid", "--fork", "--kill-child"] + ([] if network else ["--net"])
        variables = {**ENVIRONMENT, **PASSED_ON, **dict(environment)}
        done = subprocess.run(
            ["unshare", *namespaces, "sh", "-c", ENTER, "sh", self.path, "all" if network else "lo",
             "env", "-i", "-C", "/root", *(f"{name}={value}" for name, value in variables.items()), "sh", "-ec",
             script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
            timeout=1800)
        if check:
            assert done.returncode == 0, f"{script}\n{done.returncode}\n{done.stdout}"
        return done.stdout

    def files(self):
        """The paths of everything in the root, except apt's and dpkg's own files."""
        kept = ("var/lib/apt", "var/lib/dpkg", "var/cache", "var/log", "proc", "dev", "sys", "root", "tmp")
        paths = (path.relative_to(self.path).as_posix() for path in self.path.rglob("*"))
        return {path for path in paths if not path.startswith(kept)}
