"""Pods by podman, and the work of a kubelet: probes by the manifest's values, restarts, deletion with grace."""

import ipaddress
import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request

import adaptations
import manifests
import yaml

LIMIT_S = 120  # for one podman command
FIRST_ADDRESS = ipaddress.ip_address("10.88.7.10")


def podman(*arguments, check=True, limit=LIMIT_S):
    """Runs podman and returns its output."""
    ran = subprocess.run(["podman", *arguments], capture_output=True, text=True, check=False, timeout=limit)
    if check and ran.returncode != 0:
        raise RuntimeError(f"podman {' '.join(arguments)} ended with {ran.returncode}: {ran.stderr}")
    return ran.stdout


def inspect(container):
    return json.loads(podman("inspect", "--type=container", container))[0]


def forget_neighbours():
    """Another pod at an address has another hardware address, which the kernel would look for a while later only."""
    subprocess.run(["ip", "neigh", "flush", "all"], check=True, timeout=LIMIT_S)


def next_addresses(count):
    """The addresses of the pods that are made next."""
    return [str(FIRST_ADDRESS + Pod.made + number) for number in range(count)]


class Pod:
    """One pod of a rendering: created and started by `podman play kube`; a context manager that deletes it."""

    made = 0

    def __init__(self, overlay, files=None, change=lambda flags: flags, address=None):
        objects = manifests.rendered()[overlay]
        _, self.spec = manifests.pod_of(objects)
        self.server = manifests.server_of(self.spec)
        self.name = f"{overlay}-{Pod.made}"
        self.address = address or next_addresses(1)[0]
        Pod.made += 1
        made = adaptations.pod_and_files(objects, self.name, files or {}, change)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            yaml.safe_dump_all(made, file)
            file.flush()
            podman("play", "kube", "--log-driver=k8s-file", "--network=podman", f"--ip={self.address}", file.name)
        self.container = f"{self.name}-{self.server['name']}"
        forget_neighbours()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.delete()

    def delete(self):
        podman("pod", "rm", "--force", "--time=1", self.name, check=False)

    # --- probes

    def probe(self, name):
        """True if the probe succeeds within its time."""
        probe = self.server[name]
        if set(probe) - {"grpc", "periodSeconds", "failureThreshold"}:
            raise ValueError(f"{name} has a field that this does not run: {probe}")
        grpc = probe["grpc"]
        output = podman("exec", self.container, "sortitionctl", "health", f"--server=127.0.0.1:{grpc['port']}",
                        "--timeout=1s", check=False)
        statuses = dict(line.split() for line in output.splitlines() if len(line.split()) == 2)
        return statuses.get(grpc.get("service", "server")) == "SERVING"

    def await_probe(self, name, wanted=True):
        """Probes every periodSeconds until the answer is `wanted`, as often as the startup probe may fail."""
        for _ in range(self.server["startupProbe"]["failureThreshold"]):
            if self.probe(name) == wanted:
                return self
            time.sleep(self.server[name]["periodSeconds"])
        raise TimeoutError(f"{self.name}: {name} is never {wanted}: {self.logs()}")

    def start(self):
        """Waits until the pod has started and is ready."""
        self.await_probe("startupProbe")
        return self.await_probe("readinessProbe")

    def live(self):
        """Probes for life until failureThreshold probes in a row have failed, and restarts the container then. Returns
        the failures; ends with the first success."""
        probe = self.server["livenessProbe"]
        for failures in range(probe["failureThreshold"]):
            if self.probe("livenessProbe"):
                return failures
            time.sleep(probe["periodSeconds"])
        before = self.process()
        self.signal(signal.SIGTERM)
        if not self.is_restarted(before, self.spec["terminationGracePeriodSeconds"]):
            self.kill()
        return probe["failureThreshold"]

    # --- events

    def process(self, container=None):
        """The id of the container's first process on this machine."""
        return inspect(container or self.container)["State"]["Pid"]

    def signal(self, number):
        os.kill(self.process(), number)

    def kill(self):
        """The server dies. podman restarts it, because the pod's restart policy is Always."""
        before = self.process()
        self.signal(signal.SIGKILL)
        if not self.is_restarted(before, LIMIT_S):
            raise TimeoutError(f"{self.name} was not restarted")
        return self.start()

    def is_restarted(self, before, limit):
        """True once the server has another process than `before`; False if it has none after `limit` seconds."""
        deadline = time.monotonic() + limit
        while self.process() in (0, before):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
        return True

    def stop(self):
        """Ends the server as the deletion of its pod does. Returns its exit status and the seconds that it took."""
        grace = self.spec["terminationGracePeriodSeconds"]
        begun = time.monotonic()
        podman("stop", f"--time={grace}", self.container, limit=grace + LIMIT_S)
        return inspect(self.container)["State"]["ExitCode"], time.monotonic() - begun

    def start_again(self):
        """Starts the server that has been stopped."""
        podman("start", self.container)
        forget_neighbours()
        return self.start()

    # --- observations

    def execute(self, *command, container=None):
        """Runs a command in a container; its exit status and output."""
        ran = subprocess.run(["podman", "exec", container or self.container, *command], capture_output=True, text=True,
                             check=False, timeout=LIMIT_S)
        return ran.returncode, ran.stdout + ran.stderr

    def status(self):
        """The fields of the server's process, as the kernel sees it."""
        with open(f"/proc/{self.process()}/status", encoding="ascii") as file:
            return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)

    def metrics(self):
        with urllib.request.urlopen(f"http://{self.address}:9464/metrics", timeout=20) as response:
            return response.read().decode()

    def logs(self):
        ran = subprocess.run(["podman", "logs", self.container], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                             text=True, check=False, timeout=LIMIT_S)
        return ran.stdout


class Worker:
    """scale_worker, which draws each token a second time in its process; a context manager."""

    def __init__(self, command, *flags):
        # gRPC's own log has a line for each answer of a proxy without servers.
        self._process = subprocess.Popen([*command, "--workers=2", "--sequences=4", "--check", *flags],
                                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                         env={**os.environ, "GRPC_VERBOSITY": "NONE"})

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def stop(self):
        """Ends the work and returns the findings."""
        out, _ = self._process.communicate(timeout=LIMIT_S)
        return json.loads(out)
