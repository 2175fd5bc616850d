"""Renders the tree's kustomizations where there is no kustomize: exactly the features that they use, and no other.

resources, components, configMapGenerator (files), images (newTag), and JSON patches by target. Whatever else a
kustomization says is an error. Names of generated ConfigMaps get no hash suffix.
"""

import copy
import os
import re

import yaml

POD_SPEC = ("spec", "template", "spec")


class Unsupported(Exception):
    """The kustomization asks for what this renderer does not do."""


def load(path):
    with open(path, encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def only(mapping, *known):
    unknown = set(mapping) - set(known)
    if unknown:
        raise Unsupported(f"{sorted(unknown)} in {mapping}")


def render(folder, objects=()):
    """The objects of the kustomization in `folder`; a component changes and adds to `objects`."""
    (kustomization,) = load(os.path.join(folder, "kustomization.yaml"))
    only(kustomization, "apiVersion", "kind", "resources", "components", "configMapGenerator", "images", "patches")
    objects = list(objects)
    for resource in kustomization.get("resources", []):
        path = os.path.normpath(os.path.join(folder, resource))
        objects += render(path) if os.path.isdir(path) else load(path)
    for generator in kustomization.get("configMapGenerator", []):
        objects.append(config_map(folder, generator))
    for component in kustomization.get("components", []):
        objects = render(os.path.normpath(os.path.join(folder, component)), objects)
    for patch in kustomization.get("patches", []):
        apply(folder, patch, objects)
    for image in kustomization.get("images", []):
        only(image, "name", "newTag")
        for container in containers(objects):
            if container["image"].split(":")[0] == image["name"]:
                container["image"] = f"{image['name']}:{image['newTag']}"
    return objects


def config_map(folder, generator):
    only(generator, "name", "files")
    data = {}
    for name in generator["files"]:
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            data[name] = file.read()
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}


def containers(objects):
    for made in objects:
        pod = made
        for key in POD_SPEC:
            pod = pod.get(key, {}) if isinstance(pod, dict) else {}
        yield from pod.get("initContainers", [])
        yield from pod.get("containers", [])


def matches(made, target):
    only(target, "kind", "name", "labelSelector")
    labels = made["metadata"].get("labels", {})
    wanted = dict(pair.split("=") for pair in filter(None, target.get("labelSelector", "").split(",")))
    return (re.fullmatch(target.get("kind", ".*"), made["kind"])
            and re.fullmatch(target.get("name", ".*"), made["metadata"]["name"])
            and wanted.items() <= labels.items())


def apply(folder, patch, objects):
    only(patch, "target", "path", "patch", "options")
    operations = load(os.path.join(folder, patch["path"]))[0] if "path" in patch else yaml.safe_load(patch["patch"])
    targets = [made for made in objects if matches(made, patch["target"])]
    if not targets:
        raise Unsupported(f"a patch without a target: {patch['target']}")
    for made in targets:
        kind = made["kind"]
        for operation in operations:
            change(made, operation)
        if made["kind"] != kind and not patch.get("options", {}).get("allowKindChange"):
            raise Unsupported(f"a patch that changes {kind} to {made['kind']}")


def change(made, operation):
    """One operation of a JSON patch (RFC 6902)."""
    only(operation, "op", "path", "value")
    *parents, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    parent = made
    for part in parents:
        parent = parent[int(part) if isinstance(parent, list) else part]
    if isinstance(parent, list) and last == "-" and operation["op"] == "add":
        parent.append(copy.deepcopy(operation["value"]))
        return
    key = int(last) if isinstance(parent, list) else last
    if operation["op"] == "add" and not isinstance(parent, list):
        parent[key] = copy.deepcopy(operation["value"])
    elif operation["op"] == "replace":
        parent[key]  # must be there
        parent[key] = copy.deepcopy(operation["value"])
    elif operation["op"] == "remove":
        del parent[key]
    else:
        raise Unsupported(str(operation))
