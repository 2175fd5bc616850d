#!/usr/bin/env python3
"""Makes archives of this machine in every way that it can, and compares them.

`prove.py BUILD FOLDER [--by=NAME] [--only=WAY,...] [--texts=N]` takes the programs of BUILD/bin. Each way that cannot
be made here is named with the reason. The exit status is 0 if all archives are equal, 1 if a bit differs, 2 if none
was made.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

CPU_TARGETS = ("scalar", "sse4", "avx2", "avx512", "neon")
# Drivers that compute on the CPU, and where their manifests are.
VULKAN_DRIVERS = {
    "lavapipe": ("/usr/share/vulkan/icd.d/lvp_icd.json", "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json"),
    "swiftshader": ("/usr/lib/chromium/vk_swiftshader_icd.json",),
}
LONGEST = 3600  # seconds, of one way
KILLED_AT = "step 128"


class Unable(Exception):
    """This machine cannot make an archive in this way."""


class Maker:
    def __init__(self, build: pathlib.Path, folder: pathlib.Path, flags: List[str]) -> None:
        self.program = build / "bin" / "sortition_self_test"
        self.server = build / "bin" / "sortitiond"
        self.build = build
        self.folder = folder
        self.flags = flags

    def path(self, way: str) -> pathlib.Path:
        return self.folder / f"{way}.tar.gz"

    def start(self, way: str, flags: List[str],
              environment: Optional[Dict[str, str]] = None) -> "subprocess.Popen[str]":
        return subprocess.Popen([str(self.program), f"--prove={self.path(way)}", *self.flags, *flags],
                                cwd=self.build.parent, env={**os.environ, **(environment or {})},
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def end(self, process: "subprocess.Popen[str]") -> None:
        _, said = process.communicate(timeout=LONGEST)
        if process.returncode != 0:
            raise Unable(said.strip().splitlines()[-1] if said.strip() else f"exit status {process.returncode}")

    def on_device(self, way: str, device: str, environment: Optional[Dict[str, str]] = None) -> None:
        self.end(self.start(way, [f"--device={device}"], environment))

    def on_vulkan(self, way: str) -> None:
        for manifest in VULKAN_DRIVERS[way.split("-")[1]]:
            if os.path.exists(manifest):
                return self.on_device(way, "vulkan0", {"VK_ICD_FILENAMES": manifest, "VK_DRIVER_FILES": manifest})
        raise Unable("the driver is not installed")

    def on_cuda_driver(self, way: str, folder: str) -> None:
        if not (self.build / folder).is_dir():
            raise Unable(f"there is no {folder} in the build")
        self.on_device(way, "cuda0", {"LD_LIBRARY_PATH": str(self.build / folder)})

    def on_emulated_neon(self, way: str) -> None:
        if not (self.build.parent / "neon/answers").exists() or not shutil.which("qemu-aarch64"):
            raise Unable("./dev neon makes the program for it")
        self.on_device(way, "pipe:qemu-aarch64 neon/answers neon")

    @contextlib.contextmanager
    def servers(self, count: int, rings: bool = False) -> Iterator[List["Server"]]:
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            key = os.path.join(folder, "key.pem")
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True,
                           stderr=subprocess.DEVNULL)
            # Replicas that continue each other's mirostat share a secret.
            secret = os.path.join(folder, "secret")
            pathlib.Path(secret).write_bytes(os.urandom(32))
            flags = [f"--receipt_key={key}", f"--checkpoint_key={secret}"]
            servers = [Server(self.server, os.path.join(folder, str(i)), flags, rings) for i in range(count)]
            for server in servers:
                stack.callback(server.stop)
            for server in servers:
                server.await_port()
            yield servers

    def by_service(self, way: str, *flags: str, rings: bool = False) -> None:
        with self.servers(1, rings) as (server,):
            self.end(self.start(way, [f"--endpoint={server.memory if rings else server.address()}", *flags]))

    def by_replicas(self, way: str) -> None:
        """Two workers and two servers, of which the first is killed half way."""
        with self.servers(2) as servers:
            flags = ["--endpoint=" + ",".join(server.address() for server in servers)]
            workers = [self.start(way, flags), self.start(way + ".2", flags)]
            try:
                assert workers[0].stderr is not None
                for line in workers[0].stderr:
                    if line.startswith(KILLED_AT):
                        break
                servers[0].kill()
                for worker in workers:
                    self.end(worker)
            finally:
                for worker in workers:
                    if worker.poll() is None:
                        worker.kill()
        if self.compare(way, way + ".2") != 0:
            raise SystemExit(f"prove: {way}: its two workers have drawn other texts")
        self.path(way + ".2").unlink()

    def compare(self, one: str, other: str) -> int:
        return subprocess.run([str(self.program), "--compare", str(self.path(one)), str(self.path(other))],
                              check=False).returncode

    def ways(self) -> Dict[str, Callable[[str], None]]:
        ways: Dict[str, Callable[[str], None]] = {"reference": lambda way: self.on_device(way, "reference")}
        for target in CPU_TARGETS:
            ways[f"cpu-{target}"] = lambda way: self.on_device(way, way.replace("-", ":"))
        for driver in VULKAN_DRIVERS:
            ways[f"vulkan-{driver}"] = self.on_vulkan
        ways["vulkan"] = lambda way: self.on_device(way, "vulkan0")
        ways["cuda"] = lambda way: self.on_device(way, "cuda0")
        ways["cpu-neon-emulated"] = self.on_emulated_neon
        ways["cuda-emulated"] = lambda way: self.on_cuda_driver(way, "fake_cuda")
        ways["cuda-interpreted"] = lambda way: self.on_cuda_driver(way, "ptx_cuda")
        ways["service-tcp"] = lambda way: self.by_service(way, "--transport=grpc", "--row_form=full")
        ways["service-ring"] = lambda way: self.by_service(way, "--transport=ring", rings=True)
        ways["service-compact"] = lambda way: self.by_service(way, "--transport=grpc", "--row_form=compact(64)")
        ways["service-replicas"] = self.by_replicas
        return ways


class Server:
    """A sortitiond on a free port of loopback, with a key for receipts."""

    def __init__(self, program: pathlib.Path, folder: str, flags: List[str], rings: bool) -> None:
        os.mkdir(folder)
        self.port_file = os.path.join(folder, "port")
        self.memory = "unix:" + os.path.join(folder, "memory")
        memory = [f"--memory_listen={self.memory}"] if rings else []
        self.process = subprocess.Popen([str(program), "--listen=127.0.0.1:0", f"--port_file={self.port_file}",
                                         "--metrics_listen=", "--devices=cpu", "--log_level=error",
                                         *flags, *memory])

    def await_port(self) -> None:
        for _ in range(600):
            if os.path.exists(self.port_file) and os.path.getsize(self.port_file):
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit("prove: the server did not start")

    def address(self) -> str:
        return "127.0.0.1:" + pathlib.Path(self.port_file).read_text(encoding="ascii").strip()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self.kill()


def entry(path: pathlib.Path) -> Dict[str, Any]:
    """Returns who made an archive, and its hashes: all but the files that are equal everywhere."""
    with tarfile.open(path) as archive:
        read = {name: json.load(archive.extractfile(name)) for name in ("machine.json", "vectors.json", "proof.json")}
    return {name.split(".", maxsplit=1)[0]: content for name, content in read.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--by", default="", help="name of the maker")
    parser.add_argument("--only", default="", help="ways, with commas between them")
    parser.add_argument("--texts", type=int, help="how many texts of each setting are drawn; all by default")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    maker = Maker(options.build.resolve(), options.folder.resolve(),
                  [f"--made_by={options.by}", *([f"--texts={options.texts}"] if options.texts else [])])
    ways = maker.ways()
    chosen = options.only.split(",") if options.only else list(ways)
    for way in chosen:
        if way not in ways:
            parser.error(f"--only={way}: there are {', '.join(ways)}")
    made, status = [], 0
    for way in chosen:
        began = time.monotonic()
        try:
            ways[way](way)
        except Unable as why:
            print(f"{way}: not made: {why}", flush=True)
            continue
        made.append(way)
        print(f"{way}: made in {time.monotonic() - began:.0f} s", flush=True)
        (maker.folder / f"{way}.json").write_text(json.dumps(entry(maker.path(way)), indent=1) + "\n", encoding="utf-8")
        if way != made[0] and maker.compare(made[0], way) != 0:
            status = 1
    print(f"{len(made)} archives in {options.folder}", flush=True)
    return status if made else 2


if __name__ == "__main__":
    sys.exit(main())
