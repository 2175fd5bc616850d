"""Holds the rendered manifests and the Dockerfile against Kubernetes' schemas, the server's flags and each other."""

import copy
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest

import jsonschema
import kubernetes_validate
import yaml

import bounds
import kustomize
import manifests
from sortitiond_process import ENVIRONMENT, binary

KUBERNETES_VERSIONS = ("1.33", "1.34", "1.37")
# Objects that the oldest of these versions do not know.
UNKNOWN = {("ResourceClaimTemplate", "1.33")}
# The files of one container's log, by the kubelet's defaults: containerLogMaxSize, containerLogMaxFiles.
LOG_BYTES = 5 * (10 << 20)
# apiVersion and kind say which schema there is.
NOTICED = (jsonschema.ValidationError, kubernetes_validate.ValidationError, kubernetes_validate.InvalidSchemaError,
           KeyError)
# Schema of the Prometheus operator's PodMonitor, as far as the manifest uses it; Kubernetes' own schemas lack it.
POD_MONITOR = {
    "type": "object", "additionalProperties": False, "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "monitoring.coreos.com/v1"}, "kind": {"const": "PodMonitor"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object", "additionalProperties": False, "required": ["selector", "podMetricsEndpoints"],
            "properties": {
                "selector": {"type": "object", "additionalProperties": False,
                             "properties": {"matchLabels": {"additionalProperties": {"type": "string"}}}},
                "podMetricsEndpoints": {"type": "array", "items": {
                    "type": "object", "additionalProperties": False,
                    "properties": {"port": {"type": "string"}, "path": {"type": "string"},
                                   "interval": {"type": "string", "pattern": r"^\d+(ms|s|m)$"}}}},
            },
        },
    },
}
# Schema of KEDA's ScaledObject, as far as the manifest uses it.
SCALED_OBJECT = {
    "type": "object", "additionalProperties": False, "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "keda.sh/v1alpha1"}, "kind": {"const": "ScaledObject"},
        "metadata": {"type": "object"},
        "spec": {
            "type": "object", "additionalProperties": False, "required": ["scaleTargetRef", "triggers"],
            "properties": {
                "scaleTargetRef": {"type": "object", "additionalProperties": False, "required": ["name"],
                                   "properties": {"name": {"type": "string"}}},
                **{name: {"type": "integer"} for name in ("pollingInterval", "minReplicaCount", "maxReplicaCount")},
                # Its content has Kubernetes' own schema (validate).
                "advanced": {"type": "object", "additionalProperties": False, "properties": {
                    "horizontalPodAutoscalerConfig": {
                        "type": "object", "additionalProperties": False, "required": ["behavior"],
                        "properties": {"behavior": {"type": "object"}}}}},
                # KEDA takes every value of a trigger as text.
                "triggers": {"type": "array", "items": {
                    "type": "object", "additionalProperties": False, "required": ["type", "metadata"],
                    "properties": {
                        "type": {"enum": ["prometheus", "cpu"]},
                        "metricType": {"enum": ["AverageValue", "Value", "Utilization"]},
                        "metadata": {"type": "object", "additionalProperties": False, "properties": {
                            name: {"type": "string"} for name in ("serverAddress", "query", "threshold", "value")}}},
                    "if": {"properties": {"type": {"const": "prometheus"}}},
                    "then": {"properties": {"metadata": {"required": ["serverAddress", "query", "threshold"]}}},
                    "else": {"properties": {"metadata": {"required": ["value"]}}}}},
            },
        },
    },
}


def read(path):
    with open(os.path.join(manifests.ROOT, path), encoding="utf-8") as file:
        return file.read()


def known_flags():
    shown = subprocess.run([binary(), "--help"], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return set(re.findall(r"^ +--(\w+) \(", shown.stdout, re.MULTILINE))


def seconds(duration):
    return int(duration[:-1]) * {"s": 1, "m": 60, "h": 3600}[duration[-1]]


def port(address):
    return int(address.rsplit(":", 1)[1])


def quantity(text):
    number, unit = re.fullmatch(r"(\d+)(Gi|Mi)?", text).groups()
    return int(number) << {"Gi": 30, "Mi": 20, None: 0}[unit]


def autoscaler_of(scaled):
    """The HorizontalPodAutoscaler that KEDA makes of a ScaledObject, without its metrics."""
    spec = scaled["spec"]
    return {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": scaled["metadata"],
            "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", **spec["scaleTargetRef"]},
                     "minReplicas": spec["minReplicaCount"], "maxReplicas": spec["maxReplicaCount"],
                     **spec["advanced"]["horizontalPodAutoscalerConfig"]}}


def validate(made, version):
    if made["kind"] == "PodMonitor":
        jsonschema.validate(made, POD_MONITOR)
    elif made["kind"] == "ScaledObject":
        jsonschema.validate(made, SCALED_OBJECT)
        kubernetes_validate.validate(autoscaler_of(made), version, strict=True)
    else:
        kubernetes_validate.validate(made, version, strict=True)


def paths(node, at=()):
    """Every path to a mapping of the node that has keys."""
    if isinstance(node, dict) and node:
        yield at
    for key, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from paths(value, at + (key,))


# Settings of a foreign engine in addition to the overlay's.
ENGINES_OWN = {
    "volumes": [{"name": "model", "persistentVolumeClaim": {"claimName": "weights"}},
                {"name": "shm", "emptyDir": {"medium": "Memory"}}],
    "initContainers": [{"name": "fetch", "image": "fetch",
                        "volumeMounts": [{"name": "model", "mountPath": "/model"}]}],
}


def write_engine(folder):
    """A Deployment with all of that, in a file of the folder; its path."""
    (engine,) = yaml.safe_load_all(read("deploy/kubernetes/overlays/sidecar/engine.yaml"))
    pod = engine["spec"]["template"]["spec"]
    pod.update(copy.deepcopy(ENGINES_OWN))
    pod["containers"][0]["volumeMounts"] += [{"name": volume["name"], "mountPath": f"/{volume['name']}"}
                                             for volume in ENGINES_OWN["volumes"]]
    path = os.path.join(folder, "engine.yaml")
    with open(path, "w", encoding="utf-8") as file:
        yaml.safe_dump(engine, file)
    return path


class SchemaTest(unittest.TestCase):
    def test_every_object_is_what_kubernetes_knows(self):
        for name, objects in manifests.rendered().items():
            for made in objects:
                for version in KUBERNETES_VERSIONS:
                    with self.subTest(name, kind=made["kind"], version=version):
                        if (made["kind"], version) in UNKNOWN:
                            self.assertRaises(kubernetes_validate.SchemaNotFoundError, validate, made, version)
                        else:
                            validate(made, version)

    def test_a_typo_fails(self):
        """In every mapping whose keys Kubernetes defines, a key with one letter more is noticed."""
        free = {"labels", "annotations", "matchLabels", "data", "limits", "requests", "nodeSelector"}
        renderings = manifests.rendered()
        for made in renderings["remote"] + renderings["keda"] + renderings["same-gpu"]:
            for path in paths(made):
                if path and path[-1] in free or (made["kind"], path) == ("Service", ("spec", "selector")):
                    continue
                broken = copy.deepcopy(made)
                at = broken
                for key in path:
                    at = at[key]
                first = sorted(at)[0]
                at["x" + first] = at.pop(first)
                with self.subTest(made["kind"], path=path), self.assertRaises(NOTICED):
                    validate(broken, KUBERNETES_VERSIONS[-1])

    @unittest.skipUnless(shutil.which("kubectl"), "kubectl is not installed: our renderer was not compared with it")
    def test_the_renderer_agrees_with_kustomize(self):
        with tempfile.TemporaryDirectory() as folder:
            manifests.write_combination(folder, write_engine(folder), "sidecar", "same-gpu")
            for overlay in [*map(manifests.overlay_folder, manifests.OVERLAYS), folder]:
                built = subprocess.run(["kubectl", "kustomize", overlay], capture_output=True, text=True, check=True)
                # Kustomize appends a hash to the names of generated ConfigMaps.
                text = re.sub(r"(\bname: sortition(?:-sidecar)?)-[a-z0-9]{10}\b", r"\1", built.stdout)
                theirs = sorted(yaml.safe_load_all(text), key=lambda made: made["kind"])
                ours = sorted(kustomize.render(overlay), key=lambda made: made["kind"])
                self.assertEqual(json.dumps(ours, sort_keys=True), json.dumps(theirs, sort_keys=True), overlay)


class ManifestTest(unittest.TestCase):
    def setUp(self):
        self.renderings = manifests.rendered()

    def each(self):
        for name, objects in self.renderings.items():
            workload, pod = manifests.pod_of(objects)
            with self.subTest(name):
                yield objects, workload, pod, manifests.server_of(pod), manifests.flags_of(objects)

    def test_every_flag_exists(self):
        self.assertIn("listen", known_flags())
        for _, _, _, server, flags in self.each():
            self.assertLessEqual(set(flags), known_flags())
            self.assertLessEqual(set(manifests.settings_of(server)), known_flags())

    def test_flags_are_mounted_where_they_are_read(self):
        for objects, _, pod, server, _ in self.each():
            config = manifests.config_of(objects)["metadata"]["name"]
            (volume,) = [volume for volume in pod["volumes"] if volume.get("configMap", {}).get("name") == config]
            (mount,) = [mount for mount in server["volumeMounts"] if mount["name"] == volume["name"]]
            self.assertEqual(server["args"], [f"--flagfile={mount['mountPath']}/sortitiond.flags"])

    def test_ports_are_those_that_are_listened_on(self):
        for objects, _, pod, server, flags in self.each():
            ports = {entry["name"]: entry["containerPort"] for entry in server["ports"]}
            listened = {"health": port(flags["health_listen"]), "metrics": port(flags["metrics_listen"])}
            if not flags["listen"].startswith("unix:"):
                listened["grpc"] = port(flags["listen"])
            self.assertEqual(ports, listened)
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                self.assertEqual(server[probe]["grpc"]["port"], ports["health"], probe)
            for made in objects:
                if made["kind"] == "Service":
                    self.assertEqual([entry["targetPort"] for entry in made["spec"]["ports"]], ["grpc"])
                elif made["kind"] == "PodMonitor":
                    self.assertEqual([end["port"] for end in made["spec"]["podMetricsEndpoints"]], ["metrics"])

    def test_policy_opens_each_port_to_those_who_need_it(self):
        workers = [{"podSelector": {"matchLabels": {"sortition-client": "true"}}, "namespaceSelector": {}}]
        prometheus = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
        for objects, workload, _, server, flags in self.each():
            (policy,) = [made["spec"] for made in objects if made["kind"] == "NetworkPolicy"]
            labels = workload["spec"]["template"]["metadata"]["labels"]
            self.assertTrue(policy["podSelector"]["matchLabels"])
            self.assertLessEqual(policy["podSelector"]["matchLabels"].items(), labels.items())
            numbers = {entry["name"]: entry["containerPort"] for entry in server["ports"]}
            opened = {numbers.get(entry["port"], entry["port"]): rule.get("from")
                      for rule in policy["ingress"] for entry in rule["ports"]}
            # No policy stops the node, which probes the health port.
            wanted = {numbers["metrics"]: prometheus}
            if "grpc" in numbers:
                wanted[numbers["grpc"]] = workers
            self.assertEqual(opened, wanted)
            self.assertTrue(flags.get("admin_listen", "unix:").startswith("unix:"))

    def test_selectors_select_the_pods(self):
        for objects, workload, _, _, _ in self.each():
            labels = workload["spec"]["template"]["metadata"]["labels"]
            for made in objects:
                spec = made.get("spec", {})
                selector = spec.get("podSelector") or spec.get("selector") or {}
                if made["kind"] == "Service":
                    selector = {"matchLabels": selector}
                self.assertLessEqual(selector.get("matchLabels", {}).items(), labels.items(), made["kind"])

    def test_autoscaler_uses_a_served_metric(self):
        objects = self.renderings["remote"]
        workload, _ = manifests.pod_of(objects)
        (autoscaler,) = [made for made in objects if made["kind"] == "HorizontalPodAutoscaler"]
        target = autoscaler["spec"]["scaleTargetRef"]
        self.assertEqual((target["apiVersion"], target["kind"], target["name"]),
                         (workload["apiVersion"], workload["kind"], workload["metadata"]["name"]))
        # The autoscaler owns the number of replicas: an apply must not reset it.
        self.assertNotIn("replicas", workload["spec"])
        (rule,) = yaml.safe_load(read("monitoring/prometheus-adapter.yaml"))["rules"]
        (pods,) = [metric["pods"] for metric in autoscaler["spec"]["metrics"] if metric["type"] == "Pods"]
        self.assertEqual(pods["metric"]["name"], rule["seriesQuery"].split("{")[0])

    def test_keda_scales_by_the_autoscalers_rule(self):
        workload, _ = manifests.pod_of(self.renderings["keda"])
        self.assertNotIn("replicas", workload["spec"])
        by_kind = {made["kind"]: made for name in ("remote", "keda") for made in self.renderings[name]}
        scaled, autoscaler = by_kind["ScaledObject"], by_kind["HorizontalPodAutoscaler"]
        self.assertEqual(scaled["spec"]["scaleTargetRef"]["name"], workload["metadata"]["name"])
        (pods,) = [metric["pods"] for metric in autoscaler["spec"]["metrics"] if metric["type"] == "Pods"]
        (cpu,) = [metric["resource"] for metric in autoscaler["spec"]["metrics"] if metric["type"] == "Resource"]
        queue, processors = scaled["spec"]["triggers"]
        self.assertEqual((queue["metricType"], queue["metadata"]["threshold"]),
                         (pods["target"]["type"], pods["target"]["averageValue"]))
        self.assertEqual((processors["metricType"], processors["metadata"]["value"]),
                         (cpu["target"]["type"], str(cpu["target"]["averageUtilization"])))
        self.assertIn(pods["metric"]["name"], queue["metadata"]["query"])
        made = autoscaler_of(scaled)["spec"]
        self.assertEqual({key: made[key] for key in ("minReplicas", "maxReplicas", "behavior")},
                         {key: autoscaler["spec"][key] for key in ("minReplicas", "maxReplicas", "behavior")})

    def test_the_drain_fits_the_termination(self):
        for _, _, pod, _, flags in self.each():
            self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], seconds(flags["drain_grace"]) + 10)

    def test_memory_holds_what_the_limits_allow(self):
        for _, _, pod, server, flags in self.each():
            settings = {**flags, **manifests.settings_of(server)}
            held = bounds.most_memory(settings)
            held += sum(quantity(volume["emptyDir"]["sizeLimit"]) for volume in pod["volumes"]
                        if volume.get("emptyDir", {}).get("medium") == "Memory"
                        and volume["name"] in [mount["name"] for mount in server["volumeMounts"]])
            self.assertGreaterEqual(quantity(server["resources"]["limits"]["memory"]), held)
            self.assertEqual(server["resources"]["requests"]["cpu"], flags["cpu_threads"])

    def test_storage_holds_the_log_and_nothing_else_is_written(self):
        for _, _, pod, server, flags in self.each():
            least, most = (quantity(server["resources"][kind]["ephemeral-storage"]) for kind in ("requests", "limits"))
            self.assertLessEqual(least, most)
            self.assertGreaterEqual(most, LOG_BYTES)
            written = [mount["name"] for mount in server["volumeMounts"] if not mount.get("readOnly")]
            for volume in pod["volumes"]:
                if volume["name"] in written:
                    self.assertEqual(volume["emptyDir"]["medium"], "Memory")
            self.assertEqual(flags.keys() & {"receipt_folder", "vulkan_cache", "port_file"}, set())

    def test_secrets_are_for_the_group_alone(self):
        for _, _, pod, _, _ in self.each():
            for volume in pod["volumes"]:
                if "secret" in volume:
                    self.assertEqual(volume["secret"]["defaultMode"], 0o440)
                    self.assertEqual(pod["securityContext"]["fsGroup"], pod["securityContext"]["runAsGroup"])

    def test_certificates_are_mounted_where_they_are_read(self):
        for _, _, pod, server, flags in self.each():
            mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
            secrets = [mounts[volume["name"]] for volume in pod["volumes"] if "secret" in volume]
            read_from = {os.path.dirname(flags[flag]) for flag in flags if flag.startswith("tls_")}
            self.assertEqual(set(secrets), read_from)
            self.assertEqual(bool(read_from), not flags["listen"].startswith("unix:"))

    def test_the_process_has_no_privileges(self):
        user, group = re.search(r"^USER (\d+):(\d+)$", read("deploy/Dockerfile"), re.MULTILINE).groups()
        for _, _, pod, server, _ in self.each():
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertEqual(pod["securityContext"]["runAsUser"], int(user))
            self.assertEqual(pod["securityContext"]["runAsGroup"], int(group))
            self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertTrue(server["securityContext"]["readOnlyRootFilesystem"])
            self.assertFalse(server["securityContext"]["allowPrivilegeEscalation"])
            self.assertEqual(server["securityContext"]["capabilities"], {"drop": ["ALL"]})
            self.assertIs(pod["automountServiceAccountToken"], False)
            # A Service named sortitiond would set variables that the server refuses.
            self.assertIs(pod["enableServiceLinks"], False)

    def test_gpus_are_asked_for(self):
        for overlay in ("remote", "node"):
            for component, resource in (("nvidia", "nvidia.com/gpu"), ("amd", "amd.com/gpu")):
                _, pod = manifests.pod_of(self.renderings[f"{overlay}+{component}"])
                self.assertEqual(manifests.server_of(pod)["resources"]["limits"][resource], "1")
                self.assertEqual([toleration["key"] for toleration in pod["tolerations"]], [resource])

    def test_engine_and_sidecar_have_one_gpu(self):
        objects = self.renderings["same-gpu"]
        _, pod = manifests.pod_of(objects)
        server, (engine,) = manifests.server_of(pod), pod["containers"]
        (claim,) = pod["resourceClaims"]
        (template,) = [made for made in objects if made["kind"] == "ResourceClaimTemplate"]
        self.assertEqual(claim["resourceClaimTemplateName"], template["metadata"]["name"])
        # One request, for one device: with a claim on more devices the two could take different ones.
        (request,) = template["spec"]["spec"]["devices"]["requests"]
        self.assertEqual(request["exactly"], {"deviceClassName": "gpu.nvidia.com"})
        for container in (server, engine):
            self.assertEqual(container["resources"]["claims"], [{"name": claim["name"]}])
            self.assertNotIn("nvidia.com/gpu", container["resources"].get("limits", {}))
            # One user, for the sockets; one volume, where they are.
            self.assertNotIn("runAsUser", container["securityContext"])
            self.assertIn("sortition-socket", [mount["name"] for mount in container["volumeMounts"]])
        # Descriptors are passed: the host's namespaces are not shared.
        self.assertEqual(pod.keys() & {"hostIPC", "hostPID", "shareProcessNamespace"}, set())
        settings = manifests.settings_of(server)
        self.assertEqual(settings["devices"], "cuda,cpu")
        self.assertGreater(int(settings["connection_device_bytes"]), 0)
        # The image's variant with CUDA kernels.
        plain = manifests.server_of(manifests.pod_of(self.renderings["sidecar"])[1])["image"]
        self.assertEqual(server["image"], f"{plain}-cuda")


class EngineTest(unittest.TestCase):
    def test_sidecar_leaves_the_engine_unchanged(self):
        for components in (["sidecar"], ["sidecar", "same-gpu"]):
            with self.subTest(components), tempfile.TemporaryDirectory() as folder:
                path = write_engine(folder)
                manifests.write_combination(folder, path, *components)
                objects = kustomize.render(folder)
                workload, pod = manifests.pod_of(objects)
                before = yaml.safe_load(read(path))["spec"]["template"]
                labels = workload["spec"]["template"]["metadata"]["labels"]
                self.assertEqual(labels, {**before["metadata"]["labels"], "sortition-metrics": "true"})
                self.assertEqual(pod["containers"], before["spec"]["containers"])
                for key, own in ENGINES_OWN.items():
                    names = [entry["name"] for entry in pod[key]]
                    self.assertEqual(len(names), len(set(names)), key)
                    self.assertEqual([entry for entry in pod[key] if entry in own], own, key)
                # It serves before the engine's containers start, and its volumes exist.
                self.assertEqual(pod["initContainers"][0]["name"], "sortitiond")
                mounts = {mount["name"] for mount in manifests.server_of(pod)["volumeMounts"]}
                self.assertLessEqual(mounts, {volume["name"] for volume in pod["volumes"]})
                for made in objects:
                    validate(made, KUBERNETES_VERSIONS[-1])


class SocketTest(unittest.TestCase):
    def test_pages_name_sockets_that_are_served(self):
        """Each socket is one of the package's or the sidecar's, or of a server that the same page starts."""
        listening, named = r"listen=(\S+)", r"/run/[\w./-]+\.sock"
        served = [read(f"deploy/{where}/sortitiond.flags") for where in ("packages", "kubernetes/components/sidecar")]
        everywhere = set(re.findall(named, " ".join(re.findall(listening, "\n".join(served)))))
        docs = sorted(os.listdir(os.path.join(manifests.ROOT, "docs")))
        pages = ["README.md", "deploy/README.md", *(f"docs/{name}" for name in docs if name.endswith(".md"))]
        found = {page: set(re.findall(named, read(page))) for page in pages}
        self.assertGreaterEqual(found["docs/engines.md"], {"/run/sortition/sortition.sock"})
        for page, sockets in found.items():
            started = re.findall(named, " ".join(re.findall(listening, read(page))))
            self.assertEqual(sockets - everywhere - set(started), set(), page)


class DockerfileTest(unittest.TestCase):
    def test_copies_what_the_build_needs(self):
        copied = set(re.findall(r"^COPY (?!--from)(\S+) ", read("deploy/Dockerfile"), re.MULTILINE))
        for path in copied:
            self.assertTrue(os.path.exists(os.path.join(manifests.ROOT, path)), path)
        allowed = {line[1:] for line in read("deploy/Dockerfile.dockerignore").splitlines() if line.startswith("!")}
        self.assertEqual(copied, allowed)

    def test_no_image_is_named_by_a_tag_alone(self):
        images = re.findall(r"^(?:ARG (?:BASE|CUDA)=|FROM )(\S+)", read("deploy/Dockerfile"), re.MULTILINE)
        stages = re.findall(r"^FROM \S+ AS (\w+)$", read("deploy/Dockerfile"), re.MULTILINE)
        for image in images:
            self.assertTrue(image in ("${BASE}", "${CUDA}", "scratch", *stages) or "@sha256:" in image, image)

    def test_a_base_of_a_snapshot_has_no_other_source(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "mmdebstrap")
            with open(program, "w", encoding="ascii") as file:
                file.write("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
            os.chmod(program, 0o755)

            def arguments(**environment):
                made = subprocess.run([os.path.join(manifests.ROOT, "deploy/debian_root.sh"), "bookworm", "root.tar"],
                                      env={"PATH": f"{folder}:{os.environ['PATH']}", **environment},
                                      capture_output=True, text=True, check=True)
                return made.stdout.splitlines()

            time = "20261101T000000Z"
            plain, pinned = arguments(), arguments(SNAPSHOT=time)
            self.assertEqual(plain[-2:], ["bookworm", "root.tar"])
            sources = pinned[pinned.index("root.tar") + 1:]
            self.assertEqual([source.split()[2] for source in sources],
                             ["bookworm", "bookworm-updates", "bookworm-security"])
            for source in sources:
                self.assertIn(f"/{time} ", source)


if __name__ == "__main__":
    unittest.main()
