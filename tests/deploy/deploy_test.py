"""Holds the manifests and the Dockerfile against the server they start and against each other."""

import os
import re
import shutil
import subprocess
import unittest

from sortitiond_process import ENVIRONMENT, Sortitiond, binary

try:
    import yaml
except ImportError:
    yaml = None

ROOT = os.environ["TEST_SOURCE_DIR"]
KUBERNETES = os.path.join(ROOT, "deploy/kubernetes")
FLAGS_FILE = "sortitiond.flags"
# The manifest's addresses and certificates belong to a cluster; everything else is started as it stands.
ON_THIS_MACHINE = Sortitiond.LOOPBACK + (
    "--health_listen=127.0.0.1:0", "--tls_certificate=", "--tls_key=", "--tls_client_ca=")


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def flags():
    """From each flag's name to its value, as the flags file sets them."""
    lines = read(f"deploy/kubernetes/{FLAGS_FILE}").splitlines()
    return dict(line[2:].split("=", 1) for line in lines if line and not line.startswith("#"))


def known_flags():
    shown = subprocess.run([binary(), "--help"], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return set(re.findall(r"^ +--(\w+) \(", shown.stdout, re.MULTILINE))


def seconds(duration):
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def port(address):
    return int(address.rsplit(":", 1)[1])


class FlagsTest(unittest.TestCase):
    def test_every_flag_exists(self):
        self.assertIn("listen", known_flags())
        self.assertLessEqual(set(flags()), known_flags())

    def test_the_server_starts_with_them(self):
        with Sortitiond(binary(), f"--flagfile={KUBERNETES}/{FLAGS_FILE}", *ON_THIS_MACHINE) as server:
            self.assertEqual(server.serving["devices"], "cpu0")
            self.assertNotEqual(server.serving["health"], "")
            self.assertIn("sortition_build_info", server.metrics())
        self.assertEqual(server.exit_status, 0)

    def test_an_unknown_flag_is_noticed(self):
        with self.assertRaisesRegex(RuntimeError, "no_such_flag"):
            Sortitiond(binary(), "--no_such_flag=1", *ON_THIS_MACHINE)


@unittest.skipUnless(yaml, "PyYAML is not installed: manifests were not parsed")
class ManifestTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.manifests = {name: yaml.safe_load(read(f"deploy/kubernetes/{name}"))
                         for name in os.listdir(KUBERNETES) if name.endswith(".yaml")}
        cls.pod = cls.manifests["deployment.yaml"]["spec"]["template"]["spec"]
        (cls.container,) = cls.pod["containers"]
        cls.flags = flags()

    def test_kustomization_lists_every_manifest(self):
        kustomization = self.manifests["kustomization.yaml"]
        self.assertEqual(set(kustomization["resources"]) | {"kustomization.yaml"}, set(self.manifests))
        (config,) = kustomization["configMapGenerator"]
        self.assertEqual(config["files"], [FLAGS_FILE])
        (volume,) = [volume for volume in self.pod["volumes"] if "configMap" in volume]
        self.assertEqual(volume["configMap"]["name"], config["name"])
        (mount,) = [mount for mount in self.container["volumeMounts"] if mount["name"] == volume["name"]]
        self.assertEqual(self.container["args"], [f"--flagfile={mount['mountPath']}/{FLAGS_FILE}"])

    def test_ports_are_those_that_are_listened_on(self):
        ports = {entry["name"]: entry["containerPort"] for entry in self.container["ports"]}
        self.assertEqual(ports, {"grpc": port(self.flags["listen"]), "health": port(self.flags["health_listen"]),
                                 "metrics": port(self.flags["metrics_listen"])})
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertEqual(self.container[probe]["grpc"]["port"], ports["health"], probe)
        (service_port,) = self.manifests["service.yaml"]["spec"]["ports"]
        self.assertEqual(service_port["targetPort"], "grpc")
        annotations = self.manifests["deployment.yaml"]["spec"]["template"]["metadata"]["annotations"]
        self.assertEqual(annotations["prometheus.io/port"], str(ports["metrics"]))

    def test_the_drain_fits_the_termination(self):
        self.assertGreaterEqual(self.pod["terminationGracePeriodSeconds"], seconds(self.flags["drain_grace"]) + 10)

    def test_memory_holds_what_the_limits_allow(self):
        limit = int(self.container["resources"]["limits"]["memory"].removesuffix("Gi")) << 30
        clients = int(self.flags["max_received_bytes"]) + int(self.flags["max_state_bytes"])
        self.assertGreaterEqual(limit, clients + (1 << 30))
        self.assertEqual(self.container["resources"]["requests"]["cpu"], self.flags["cpu_threads"])

    def test_certificates_are_mounted_where_they_are_read(self):
        (volume,) = [volume for volume in self.pod["volumes"] if "secret" in volume]
        (mount,) = [mount for mount in self.container["volumeMounts"] if mount["name"] == volume["name"]]
        for flag in ("tls_certificate", "tls_key", "tls_client_ca"):
            self.assertEqual(os.path.dirname(self.flags[flag]), mount["mountPath"])

    def test_the_process_has_no_privileges(self):
        self.assertTrue(self.pod["securityContext"]["runAsNonRoot"])
        self.assertEqual(self.pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
        self.assertTrue(self.container["securityContext"]["readOnlyRootFilesystem"])
        self.assertFalse(self.container["securityContext"]["allowPrivilegeEscalation"])
        self.assertEqual(self.container["securityContext"]["capabilities"], {"drop": ["ALL"]})
        self.assertIs(self.pod["automountServiceAccountToken"], False)

    def test_kubernetes_sets_no_variable_of_ours(self):
        self.assertIs(self.pod["enableServiceLinks"], False)

    def test_image_and_manifest_name_the_same_user(self):
        user, group = re.search(r"^USER (\d+):(\d+)$", read("deploy/Dockerfile"), re.MULTILINE).groups()
        self.assertEqual(self.pod["securityContext"]["runAsUser"], int(user))
        self.assertEqual(self.pod["securityContext"]["runAsGroup"], int(group))

    @unittest.skipUnless(shutil.which("kubectl"), "kubectl is not installed: the kustomization was not built")
    def test_the_kustomization_builds(self):
        built = subprocess.run(["kubectl", "kustomize", KUBERNETES], capture_output=True, text=True, check=False)
        self.assertEqual(built.returncode, 0, built.stderr)
        kinds = sorted(document["kind"] for document in yaml.safe_load_all(built.stdout))
        self.assertEqual(kinds, ["ConfigMap", "Deployment", "Service"])


class DockerfileTest(unittest.TestCase):
    def test_copies_what_the_build_needs(self):
        copied = set(re.findall(r"^COPY (?!--from)(\S+) ", read("deploy/Dockerfile"), re.MULTILINE))
        for path in copied:
            self.assertTrue(os.path.exists(os.path.join(ROOT, path)), path)
        allowed = {line[1:] for line in read("deploy/Dockerfile.dockerignore").splitlines() if line.startswith("!")}
        self.assertEqual(copied, allowed)


if __name__ == "__main__":
    unittest.main()
