"""The one list of changes that turn a rendering into pods of podman 4.3.

A change is a function of a Pod; its docstring is its reason. `python3 adaptations.py` prints them, and what of a
manifest podman takes without holding it.
"""

import copy
import zlib

import manifests

ENGINE_IMAGE = "localhost/sortition-engine"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
# Fields that podman takes and does not hold.
NOT_HELD = (
    "emptyDir.medium and sizeLimit: the volume is a folder on disk. The rows' memory is the server's, no file of it.",
    "fsGroup: podman gives a new volume to the first container's user.",
    "resources.requests, ephemeral-storage, topologySpreadConstraints, automountServiceAccountToken and "
    "enableServiceLinks: they are for a cluster. So are Services, NetworkPolicies, autoscalers and disruption budgets, "
    "which are not run.",
)


def containers(spec):
    return spec.get("initContainers", []) + spec["containers"]


def sidecar_is_a_container(spec):
    """An init container that restarts always becomes the first container: podman waits for the end of init
    containers."""
    first = spec.pop("initContainers", [])
    for container in first:
        if container.pop("restartPolicy") != "Always":
            raise ValueError(f"{container['name']} is no sidecar")
    spec["containers"] = first + spec["containers"]


def probes_are_run_by_the_tests(spec):
    """gRPC probes are removed: podman does not know them. The tests run them by the manifest's ports, services, periods
    and thresholds, with the image's `sortitionctl health` inside of the container."""
    for container in containers(spec):
        for probe in PROBES:
            container.pop(probe, None)


def ports_are_not_published(spec):
    """containerPorts are removed: podman publishes them on every address of the machine. The tests reach a pod at its
    own address."""
    for container in containers(spec):
        container.pop("ports", None)


def images_are_local(spec):
    """Images are local ones of the manifest's name and tag, and are never pulled. The engine's is the server's with the
    tests' worker, and waits for commands."""
    for container in containers(spec):
        engine = container["image"] == "engine"
        container["image"] = ENGINE_IMAGE if engine else f"localhost/{container['image']}"
        container["imagePullPolicy"] = "Never"
        if engine:
            container["command"] = ["sleep", "infinity"]


def secrets_are_config_maps(spec):
    """Volumes of a Secret become volumes of a ConfigMap with the same files, of podman's mode: podman 4.3 writes a
    Secret's base64 text into them."""
    for volume in spec["volumes"]:
        if "secret" in volume:
            volume["configMap"] = {"name": volume.pop("secret")["secretName"]}


CHANGES = (sidecar_is_a_container, probes_are_run_by_the_tests, ports_are_not_published, images_are_local,
           secrets_are_config_maps)
# Changes of whole objects, which pod_and_files makes.
OF_OBJECTS = (
    "A Deployment or DaemonSet becomes Pods of its template: podman has no controllers. The tests create, update and "
    "delete pods as its strategy says.",
    "An emptyDir is named for its pod: podman keeps one volume of a name, for all pods.",
    "A ConfigMap is named for its content, as kustomize names it: podman keeps one volume of a name.",
)


def pod_and_files(objects, name, files, change=lambda flags: flags):
    """The objects of one pod: its ConfigMaps, one of them with the Secret's `files`, and the Pod as podman takes it.
    `change` alters the flags file, as an operator's update does."""
    workload, spec = manifests.pod_of(objects)
    spec = copy.deepcopy(spec)
    for adapt in CHANGES:
        adapt(spec)
    made = []
    rendered = copy.deepcopy(manifests.config_of(objects))
    rendered["data"] = {key: change(text) for key, text in rendered["data"].items()}
    secret = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "sortition-tls"}, "data": files}
    for config in (rendered, secret):
        plain = config["metadata"]["name"]
        config["metadata"]["name"] = f"{plain}-{zlib.crc32(str(sorted(config['data'].items())).encode()):08x}"
        for volume in spec["volumes"]:
            if volume.get("configMap", {}).get("name") == plain:
                volume["configMap"]["name"] = config["metadata"]["name"]
                made.append(config)
    own = {volume["name"]: f"{name}-{volume['name']}" for volume in spec["volumes"] if "emptyDir" in volume}
    for named in [*spec["volumes"], *(mount for container in containers(spec) for mount in container["volumeMounts"])]:
        named["name"] = own.get(named["name"], named["name"])
    labels = workload["spec"]["template"]["metadata"]["labels"]
    return [*made, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels}, "spec": spec}]


def text():
    lines = ["Adaptations of the rendered YAML:"]
    lines += [f"- {' '.join(reason.split())}" for reason in (*OF_OBJECTS, *(change.__doc__ for change in CHANGES))]
    lines.append("Fields that podman takes and does not hold:")
    return "\n".join(lines + [f"- {field}" for field in NOT_HELD])


if __name__ == "__main__":
    print(text())
