"""Runs the manifests: the server with their arguments, environment, files, ports, probes and grace."""

import os
import socket
import struct
import subprocess
import tempfile
import time
import unittest

import manifests
from sortitiond_process import ENVIRONMENT, Sortitiond, binary, make_certificates

CTL = os.environ["TEST_SORTITIONCTL"]
FAKE_CUDA = os.environ["TEST_FAKE_CUDA"]  # folder of the tests' driver; empty: this build has no CUDA kernels


class Pod:
    """The server container of a rendering, started as a process; a context manager.

    The server gets a separate loopback address, so that the manifest's ports are free, and each volume is a folder;
    both replace the manifest's 0.0.0.0 and mount paths. `environment` is the part that the node adds.
    """

    def __init__(self, objects, address, environment=()):
        self.address = address
        _, self.pod = manifests.pod_of(objects)
        self.server = manifests.server_of(self.pod)
        self.flags = manifests.flags_of(objects)
        self._root = tempfile.TemporaryDirectory()
        self._folders = {mount["mountPath"]: os.path.join(self._root.name, mount["name"])
                         for mount in self.server["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in self.pod["volumes"]}
        for mount in self.server["volumeMounts"]:
            self._fill(self._folders[mount["mountPath"]], volumes[mount["name"]], manifests.config_of(objects)["data"])
        environment = {**{entry["name"]: entry["value"] for entry in self.server.get("env", [])}, **dict(environment)}
        self.process = Sortitiond(binary(), *map(self.here, self.server["args"]), environment=environment)

    def _fill(self, folder, volume, config):
        os.mkdir(folder)
        if "configMap" in volume:
            for name, text in config.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(self.here(text))
        elif "secret" in volume:
            make_certificates(folder, self.address)

    def here(self, text):
        """The manifest's text with this machine's address and folders."""
        for path, folder in self._folders.items():
            text = text.replace(path, folder)
        return text.replace("0.0.0.0", self.address)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.process.__exit__(*exception)
        self._root.cleanup()

    def target(self):
        """Where workers connect, and the client's flags for it."""
        address = self.here(self.flags["listen"])
        if address.startswith("unix:"):
            return address, []
        secrets = self.here(os.path.dirname(self.flags["tls_certificate"]))
        return address, ["--tls", f"--tls_ca={secrets}/ca.crt", f"--tls_certificate={secrets}/tls.crt",
                         f"--tls_key={secrets}/tls.key"]

    def probe(self, name):
        """True if the probe of this name succeeds as the kubelet does it: plain-text gRPC to the pod's address."""
        probe = self.server[name]["grpc"]
        ran = subprocess.run([CTL, "health", f"--server={self.address}:{probe['port']}", "--timeout=1s"],
                             env=ENVIRONMENT, capture_output=True, text=True, check=False)
        statuses = dict(line.split() for line in ran.stdout.splitlines())
        return statuses.get(probe.get("service", "server")) == "SERVING"

    def start(self):
        """Probes until the startup probe succeeds, as often as the manifest allows."""
        probe = self.server["startupProbe"]
        for _ in range(probe["failureThreshold"]):
            if self.probe("startupProbe"):
                return
            time.sleep(probe["periodSeconds"])
        raise TimeoutError("the startup probe never succeeded")


class RunTest(unittest.TestCase):
    def check_serving(self, pod):
        pod.start()
        self.assertTrue(pod.probe("readinessProbe"))
        self.assertTrue(pod.probe("livenessProbe"))
        self.assertEqual(pod.process.serving["metrics"], pod.here("0.0.0.0:9464"))
        address, flags = pod.target()
        with tempfile.NamedTemporaryFile(suffix=".f32") as row:
            row.write(struct.pack("<8f", 0, 1, 9, 1, 0, 0, 0, 0))
            row.flush()
            sampled = subprocess.run(
                [CTL, "sample", row.name, "--dtype=f32", "--temperature=0", f"--server={address}", *flags],
                env=ENVIRONMENT, capture_output=True, text=True, check=False)
        self.assertEqual(sampled.returncode, 0, sampled.stderr)
        self.assertIn("sortition_tokens_total 1\n", pod.process.metrics())

    def check_end(self, pod):
        """SIGTERM while a client holds a connection open must end the process within the manifest's grace."""
        grace = pod.pod["terminationGracePeriodSeconds"]
        start = time.monotonic()
        pod.process.terminate()
        self.assertEqual(pod.process.wait(grace), 0)
        self.assertLess(time.monotonic() - start, grace)

    def run_over_tcp(self, name, number):
        with Pod(manifests.rendered()[name], f"127.77.{os.getpid() % 256}.{number}") as pod:
            self.check_serving(pod)
            host, port = pod.target()[0].rsplit(":", 1)
            with socket.create_connection((host, int(port))):
                self.check_end(pod)

    def test_remote(self):
        self.run_over_tcp("remote", 1)

    def test_node(self):
        self.run_over_tcp("node", 2)

    def test_nvidia(self):
        self.run_over_tcp("remote+nvidia", 3)

    def test_amd(self):
        self.run_over_tcp("remote+amd", 5)

    def test_sidecar(self):
        with Pod(manifests.rendered()["sidecar"], f"127.77.{os.getpid() % 256}.4") as pod:
            self.check_serving(pod)
            # A worker with steps in flight all the time, which shares memory with its sidecar.
            with subprocess.Popen([CTL, "bench", f"--server={pod.target()[0]}", "--duration=1h"], env=ENVIRONMENT,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
                try:
                    while 'sortition_streams{transport="ring"} 1\n' not in pod.process.metrics():
                        time.sleep(0.05)
                    self.check_end(pod)
                finally:
                    worker.terminate()

    def test_same_gpu(self):
        """On a node with the tests' own driver; on one without any it serves too, and names the missing device."""
        for number, (driver, devices, state) in enumerate((
                (FAKE_CUDA, "cpu0,cuda0", 'device="cuda0",state="serving"'),
                ("", "cpu0", 'device="cuda",state="missing"')), 6):
            if number == 6 and not FAKE_CUDA:
                continue  # this build has no CUDA kernels
            with self.subTest(devices), Pod(manifests.rendered()["same-gpu"], f"127.77.{os.getpid() % 256}.{number}",
                                            {"LD_LIBRARY_PATH": driver}) as pod:
                self.check_serving(pod)
                self.assertEqual(pod.process.serving["devices"], devices)
                self.assertIn(f"sortition_device_state{{{state}}} 1\n", pod.process.metrics())
                self.check_end(pod)

    def test_every_server_is_run(self):
        """Environment, arguments and flags of a server are the same in all other renderings."""
        renderings = manifests.rendered()

        def what_starts(name):
            server = manifests.server_of(manifests.pod_of(renderings[name])[1])
            return repr((server.get("env"), server["args"], manifests.flags_of(renderings[name])))

        run = {what_starts(name) for name in ("remote", "node", "remote+nvidia", "remote+amd", "sidecar", "same-gpu")}
        self.assertEqual({what_starts(name) for name in renderings}, run)


if __name__ == "__main__":
    unittest.main()
