"""The rendered manifests: every overlay as it stands, and with every component that an operator may add to it."""

import os
import tempfile

import kustomize

ROOT = os.environ["TEST_SOURCE_DIR"]
KUBERNETES = os.path.join(ROOT, "deploy/kubernetes")
OVERLAYS = sorted(os.listdir(os.path.join(KUBERNETES, "overlays")))
# The other components are part of overlays.
OPTIONAL = {
    "remote": ("pod-monitor", "nvidia", "amd"),
    "keda": ("pod-monitor", "nvidia", "amd"),
    "node": ("pod-monitor", "nvidia", "amd"),
    "sidecar": ("pod-monitor",),
    "same-gpu": ("pod-monitor",),
}


def overlay_folder(overlay):
    return os.path.join(KUBERNETES, "overlays", overlay)


def write_combination(folder, resource, *components):
    """A kustomization as an operator would write it: an overlay, or a file of the folder, and components."""
    folders = [os.path.relpath(os.path.join(KUBERNETES, "components", component), folder) for component in components]
    with open(os.path.join(folder, "kustomization.yaml"), "w", encoding="utf-8") as file:
        file.write("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n"
                   f"resources: [{os.path.relpath(resource, folder)}]\ncomponents: [{', '.join(folders)}]\n")


def rendered():
    """From the name of each combination to its objects."""
    combinations = {overlay: kustomize.render(overlay_folder(overlay)) for overlay in OVERLAYS}
    for overlay, components in OPTIONAL.items():
        for component in components:
            with tempfile.TemporaryDirectory() as folder:
                write_combination(folder, overlay_folder(overlay), component)
                combinations[f"{overlay}+{component}"] = kustomize.render(folder)
    return combinations


def pod_of(objects):
    """The workload of a rendering and the spec of its pods."""
    (workload,) = [made for made in objects if "template" in made.get("spec", {})]
    return workload, workload["spec"]["template"]["spec"]


def server_of(pod):
    (container,) = [container for container in pod.get("initContainers", []) + pod["containers"]
                    if container["image"].split(":")[0] == "sortition"]
    return container


def settings_of(server):
    """From each flag's name to its value, as the container's environment sets them."""
    prefix = "SORTITIOND_"
    return {entry["name"][len(prefix):].lower(): entry["value"] for entry in server.get("env", [])
            if entry["name"].startswith(prefix)}


def config_of(objects):
    (config,) = [made for made in objects if made["kind"] == "ConfigMap"]
    return config


def flags_of(objects):
    """From each flag's name to its value, as the flags file sets them."""
    lines = config_of(objects)["data"]["sortitiond.flags"].splitlines()
    return dict(line[2:].split("=", 1) for line in lines if line and not line.startswith("#"))
