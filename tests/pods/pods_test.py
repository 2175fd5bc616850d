"""Runs the rendered Kubernetes overlays by podman: each fact of a pod, and its life under a worker that checks every
token. `./dev pods` makes the images and a network of these tests' own, and runs them."""

import contextlib
import os
import signal
import tempfile
import types
import unittest

import adaptations
import manifests
from pods import Pod, Worker, inspect, next_addresses
from proxies import HaProxy
from replicas import await_true
from sortitiond_process import make_certificates

SCALE_WORKER = os.environ["TEST_SCALE_WORKER"]
UNITS = {"Gi": 1 << 30}
LEAST_TOKENS = 200


def setUpModule():
    print(adaptations.text(), flush=True)


def other_flags(flags):
    """An operator's update."""
    return flags.replace("--cpu_threads=", "--cpu_threads=1\n#")


class Facts:
    """The tests of every overlay. One pod serves all tests that do not change it."""

    overlay = ""

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        make_certificates(cls.folder.name, "127.0.0.1")
        cls.files = {}
        for name in ("ca.crt", "tls.crt", "tls.key"):
            with open(os.path.join(cls.folder.name, name), encoding="ascii") as file:
                cls.files[name] = file.read()
        cls.pod = cls.enterClassContext(cls.make())
        cls.pod.start()

    @classmethod
    def make(cls, **arguments):
        return Pod(cls.overlay, cls.files, **arguments)

    def check(self, found):
        self.assertEqual((found["failed"], found["different"]), (0, 0))
        self.assertGreater(found["tokens"], LEAST_TOKENS)

    def await_tokens(self, *pods):
        """Waits until the servers of these pods, or one of them, have drawn tokens."""
        await_true("tokens", lambda: any(self.tokens(pod) > LEAST_TOKENS for pod in pods))

    @staticmethod
    def tokens(pod):
        for line in pod.metrics().splitlines():
            if line.startswith("sortition_tokens_total "):
                return int(float(line.split()[1]))
        raise ValueError("the page of metrics has no sortition_tokens_total")

    # --- facts that nothing changes

    def test_probes_succeed(self):
        for name in adaptations.PROBES:
            self.assertTrue(self.pod.probe(name), name)

    def test_arguments_are_the_manifests(self):
        with open(f"/proc/{self.pod.process()}/cmdline", encoding="utf-8") as file:
            program, *arguments = file.read().rstrip("\0").split("\0")
        self.assertEqual(os.path.basename(program), "sortitiond")
        self.assertEqual(arguments, self.pod.server["args"])

    def test_user_is_the_manifests(self):
        says = self.pod.spec["securityContext"]
        status = self.pod.status()
        self.assertEqual(set(status["Uid"].split()), {str(says["runAsUser"])})
        self.assertEqual(set(status["Gid"].split()), {str(says["runAsGroup"])})
        self.assertNotEqual(says["runAsUser"], 0)

    def test_root_is_read_only(self):
        self.assertTrue(self.pod.server["securityContext"]["readOnlyRootFilesystem"])
        status, output = self.pod.execute("touch", "/probe")
        self.assertNotEqual(status, 0)
        self.assertIn("Read-only file system", output)

    def test_no_capability_and_no_new_privilege(self):
        self.assertEqual(self.pod.server["securityContext"]["capabilities"], {"drop": ["ALL"]})
        self.assertFalse(self.pod.server["securityContext"]["allowPrivilegeEscalation"])
        status = self.pod.status()
        for field in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            self.assertEqual(int(status[field], 16), 0, field)
        self.assertEqual(status["NoNewPrivs"], "1")

    def test_seccomp_filters_calls(self):
        self.assertEqual(self.pod.spec["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
        self.assertEqual(self.pod.status()["Seccomp"], "2")

    def test_memory_has_the_manifests_limit(self):
        limit = self.pod.server["resources"]["limits"]["memory"]
        self.assertEqual(inspect(self.pod.container)["HostConfig"]["Memory"], int(limit[:-2]) * UNITS[limit[-2:]])

    def test_volumes_are_mounted_as_written(self):
        with open(f"/proc/{self.pod.process()}/mounts", encoding="utf-8") as file:
            mounts = {line.split()[1]: line.split()[3].split(",")[0] for line in file}
        for mount in self.pod.server["volumeMounts"]:
            wanted = "ro" if mount.get("readOnly") else "rw"
            self.assertEqual(mounts[mount["mountPath"]], wanted, mount)
            status, _ = self.pod.execute("touch", f"{mount['mountPath']}/probe")
            self.assertEqual(status == 0, wanted == "rw", mount)
        flags = self.pod.server["args"][0].removeprefix("--flagfile=")
        config = manifests.config_of(manifests.rendered()[self.overlay])["data"]
        self.assertEqual(self.pod.execute("cat", flags), (0, config["sortitiond.flags"]))

    # --- facts of a life

    def test_worker_gets_every_token(self):
        with self.worker([self.pod]) as worker:
            self.await_tokens(self.pod)
            self.check_transport(self.pod)
            self.check(worker.stop())

    def check_transport(self, pod):
        self.assertIn('sortition_streams{transport="tcp"} 2\n', pod.metrics())

    def test_drain_ends_in_grace_and_loses_no_token(self):
        with self.make() as pod, self.worker([pod.start()]) as worker:
            self.await_tokens(pod)
            self.end(pod)
            pod.start_again()
            self.await_tokens(pod)
            self.check(worker.stop())

    def end(self, pod):
        """The server drains while its worker steps, as at the deletion of its pod."""
        status, took = pod.stop()
        self.assertEqual(status, 0, pod.logs())
        self.assertLess(took, pod.spec["terminationGracePeriodSeconds"])

    def test_killed_server_is_restarted_and_loses_no_token(self):
        with self.make() as pod, self.worker([pod.start()]) as worker:
            self.await_tokens(pod)
            pod.kill()
            self.await_tokens(pod)  # counted by the new process
            self.check(worker.stop())


class RemoteTest(Facts, unittest.TestCase):
    """Replicas with TLS, behind a proxy that shows a certificate."""

    overlay = "remote"

    @contextlib.contextmanager
    def worker(self, pods, more=()):
        """A worker behind HAProxy, before these pods and those that will have the addresses `more`."""
        pem = os.path.join(self.folder.name, "worker.pem")
        with open(pem, "w", encoding="ascii") as file:
            file.write(self.files["tls.crt"] + self.files["tls.key"])
        hosts = [pod.address for pod in pods] + list(more)
        replicas = types.SimpleNamespace(addresses=[f"{host}:50051" for host in hosts], running=range(len(pods)))
        options = (f"ssl crt {pem} ca-file {self.folder.name}/ca.crt verify required verifyhost sortition "
                   "sni str(sortition) alpn h2 check-sni sortition check-alpn h2")
        with HaProxy(replicas, options) as proxy, Worker([SCALE_WORKER, f"--targets={proxy.address}"]) as worker:
            yield worker

    def test_rolling_update_loses_no_token(self):
        """A new replica is ready before each old one ends."""
        workload, _ = manifests.pod_of(manifests.rendered()[self.overlay])
        self.assertEqual(workload["spec"]["strategy"]["rollingUpdate"], {"maxUnavailable": 0, "maxSurge": 1})
        with contextlib.ExitStack() as stack:
            old = [stack.enter_context(self.make()).start() for _ in range(2)]
            with self.worker(old, next_addresses(2)) as worker:
                self.await_tokens(*old)
                new = []
                for pod in old:
                    new.append(stack.enter_context(self.make(change=other_flags)).start())
                    self.end(pod)
                self.await_tokens(*new)
                self.check(worker.stop())


class NodeTest(Facts, unittest.TestCase):
    """One server with TLS for the workers of its node."""

    overlay = "node"

    def worker(self, pods, *flags):
        return Worker([SCALE_WORKER, f"--targets={pods[0].address}:50051", f"--tls_folder={self.folder.name}",
                       "--tls_server_name=sortition"], *flags)

    def test_rolling_update_loses_no_token(self):
        """The node's old pod ends before its new one starts."""
        workload, _ = manifests.pod_of(manifests.rendered()[self.overlay])
        self.assertEqual(workload["spec"]["updateStrategy"]["rollingUpdate"], {"maxUnavailable": "10%"})
        with self.make() as old, self.worker([old.start()]) as worker:
            self.await_tokens(old)
            self.end(old)
            old.delete()
            with self.make(change=other_flags, address=old.address) as new:
                new.start()
                self.await_tokens(new)
                self.check(worker.stop())

    def test_liveness_probe_restarts_a_frozen_server(self):
        # The grace of a frozen server is longer than a step's deadline.
        with self.make() as pod, self.worker([pod.start()], "--patient") as worker:
            self.await_tokens(pod)
            self.assertEqual(pod.live(), 0)
            frozen = pod.process()
            pod.signal(signal.SIGSTOP)
            self.assertFalse(pod.probe("readinessProbe"))
            self.assertEqual(pod.live(), pod.server["livenessProbe"]["failureThreshold"])
            self.assertNotEqual(pod.start().process(), frozen)
            self.await_tokens(pod)
            self.check(worker.stop())


class SidecarTest(Facts, unittest.TestCase):
    """An engine and its server in one pod, over shared memory. The worker runs in the engine's container."""

    overlay = "sidecar"

    def worker(self, pods):
        return Worker(["podman", "exec", "--interactive", f"{pods[0].name}-engine", "sh", "-c",
                       'exec scale_worker --targets="$SAMPLER_ADDRESS" "$@"', "sh"])

    def check_transport(self, pod):
        metrics = pod.metrics()
        self.assertIn('sortition_streams{transport="ring"} 2\n', metrics)
        self.assertNotIn("sortition_memory_regions 0\n", metrics)

    def test_engine_is_the_servers_user(self):
        status, output = self.pod.execute("id", "--user", container=f"{self.pod.name}-engine")
        self.assertEqual((status, output.strip()), (0, str(self.pod.spec["securityContext"]["runAsUser"])))

    def test_sockets_are_for_that_user_alone(self):
        status, output = self.pod.execute("stat", "--format=%a", "/run/sortition/sortition.sock")
        self.assertEqual((status, output), (0, "600\n"))

    def test_rolling_update_loses_no_token(self):
        """A new pod is ready before the old one ends; in each the engine ends before its server."""
        with self.make() as old, self.worker([old.start()]) as worker, self.make(change=other_flags) as new:
            self.await_tokens(old)
            with self.worker([new.start()]) as new_worker:
                self.await_tokens(new)
                self.check(worker.stop())
                self.end(old)
                old.delete()
                self.check(new_worker.stop())


if __name__ == "__main__":
    unittest.main()
