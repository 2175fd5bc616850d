"""The adaptations for podman fit the manifests of today: each has an effect, and leaves the server as written."""

import copy
import unittest

import adaptations
import manifests

OVERLAYS = ("sidecar", "remote", "node")
FILES = {"tls.crt": "a certificate"}


class AdaptationsTest(unittest.TestCase):
    def setUp(self):
        self.renderings = {overlay: manifests.rendered()[overlay] for overlay in OVERLAYS}

    def test_each_change_has_an_effect_and_a_reason(self):
        for change in adaptations.CHANGES:
            effects = 0
            for objects in self.renderings.values():
                _, spec = manifests.pod_of(objects)
                changed = copy.deepcopy(spec)
                change(changed)
                effects += changed != spec
            self.assertGreater(effects, 0, change.__name__)
            self.assertIn(" ".join(change.__doc__.split()), adaptations.text())

    def test_pods_have_nothing_that_podman_lacks(self):
        for overlay, objects in self.renderings.items():
            *configs, pod = adaptations.pod_and_files(objects, overlay, FILES)
            self.assertEqual({config["kind"] for config in configs}, {"ConfigMap"})
            self.assertEqual(len(configs), 1 if overlay == "sidecar" else 2)
            self.assertEqual((pod["kind"], pod["metadata"]["name"]), ("Pod", overlay))
            text = repr(pod["spec"])
            for field in ("initContainers", "ports", "grpc", "secret", "restartPolicy"):
                self.assertNotIn(f"'{field}'", text, overlay)
            names = {config["metadata"]["name"] for config in configs}
            mounted = {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
            self.assertEqual(mounted, names)

    def test_the_server_keeps_its_arguments_and_security(self):
        for overlay, objects in self.renderings.items():
            _, spec = manifests.pod_of(objects)
            written = manifests.server_of(spec)
            pod = adaptations.pod_and_files(objects, overlay, FILES)[-1]
            (server,) = [container for container in pod["spec"]["containers"] if container["name"] == written["name"]]
            for field in ("args", "securityContext", "resources"):
                self.assertEqual(server[field], written[field], overlay)
            self.assertEqual(server["image"], f"localhost/{written['image']}")
            for field in ("securityContext", "terminationGracePeriodSeconds"):
                self.assertEqual(pod["spec"][field], spec[field], overlay)

    def test_an_update_has_a_config_map_of_another_name(self):
        def names(change):
            made = adaptations.pod_and_files(self.renderings["node"], "node", FILES, change)
            return {config["metadata"]["name"] for config in made[:-1]}

        self.assertEqual(len(names(lambda flags: flags) - names(lambda flags: flags + "#\n")), 1)


if __name__ == "__main__":
    unittest.main()
