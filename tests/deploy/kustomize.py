"""Renders the tree's kustomizations where there is no kustomize: exactly the features that they use, and no other.

resources, components, configMapGenerator (files), images (newTag), and patches by target: JSON patches, and strategic
merges of workloads that delete nothing. Any other key of a kustomization is an error. Names of generated ConfigMaps get
no hash suffix.
"""

import copy
import os
import re

import yaml

POD_SPEC = ("spec", "template", "spec")
# Keys of list elements that a strategic merge merges; other lists are replaced.
MERGE_KEYS = {"initContainers": "name", "volumes": "name", "env": "name", "ports": "containerPort",
              "volumeMounts": "mountPath"}
REPLACED = ("args", "claims", "drop", "resourceClaims")  # unknown to the last kustomize's schema


class Unsupported(Exception):
    """The kustomization needs a feature that this renderer lacks."""


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
    says = load(os.path.join(folder, patch["path"]))[0] if "path" in patch else yaml.safe_load(patch["patch"])
    targets = [made for made in objects if matches(made, patch["target"])]
    if not targets:
        raise Unsupported(f"a patch without a target: {patch['target']}")
    for made in targets:
        kind = made["kind"]
        if isinstance(says, dict):
            if (says["apiVersion"], says["kind"]) != (made["apiVersion"], kind):
                raise Unsupported(f"a merge of {says['kind']} into {kind}")
            only(says["metadata"], "name")  # any name: the target chooses
            merge({"spec": says["spec"]}, made)
            continue
        for operation in says:
            change(made, operation)
        if made["kind"] != kind and not patch.get("options", {}).get("allowKindChange"):
            raise Unsupported(f"a patch that changes {kind} to {made['kind']}")


def merge(patch, into):
    """A strategic merge of mappings. New elements of a list come before the old ones, as in kustomize."""
    for key, value in patch.items():
        if value is None or key.startswith("$"):
            raise Unsupported(f"{key}: {value}")
        if isinstance(value, dict):
            merge(value, into.setdefault(key, {}))
        elif key in MERGE_KEYS:
            by = MERGE_KEYS[key]
            there = {element[by]: element for element in into.get(key, [])}
            new = [copy.deepcopy(element) for element in value if element[by] not in there]
            for element in value:
                if element[by] in there:
                    merge(element, there[element[by]])
            into[key] = new + into.get(key, [])
        elif isinstance(value, list) and key not in REPLACED:
            raise Unsupported(f"a merge of {key}")
        else:
            into[key] = copy.deepcopy(value)


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
