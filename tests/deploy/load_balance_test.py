"""Envoy weighs replicas by their load reports: new streams go to the replica that is free."""

import os
import re
import subprocess
import tempfile
import unittest

import manifests
import yaml
from http2_frames import Http2Client
from proxies import Envoy, envoy_program
from replicas import Replicas, Workers, await_true

CTL = os.environ["TEST_SORTITIONCTL"]
# The weight of a replica with the least utilization that is reported.
IDLE_WEIGHT = 2000
STREAMS = 40


def policy(**settings):
    """A change of Envoy's configuration: the tree's weighted policy with these settings."""
    with open(os.path.join(manifests.ROOT, "deploy/envoy/weighted.yaml"), encoding="utf-8") as file:
        weighted = yaml.safe_load(file)
    weighted["policies"][0]["typed_extension_config"]["typed_config"].update(
        {"oob_reporting_period": "0.2s", "weight_update_period": "0.2s", "blackout_period": "0.5s", **settings})

    def change(configuration):
        (cluster,) = configuration["static_resources"]["clusters"]
        cluster["load_balancing_policy"] = weighted

    return change


@unittest.skipUnless(envoy_program(), "there is no Envoy")
class LoadBalanceTest(unittest.TestCase):
    def setUp(self):
        self.replicas = self.enterContext(Replicas(2, "--load_reports"))
        self.replicas.start(0, 1)
        self.row = os.path.join(self.enterContext(tempfile.TemporaryDirectory()), "row.f32")
        with open(self.row, "wb") as file:
            file.write(bytes(8))

    def open_stream(self, proxy):
        """A stream that ends after one row."""
        done = subprocess.run([CTL, "sample", self.row, "--dtype=f32", f"--server={proxy.address}"],
                              capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def opened(self, number):
        metrics = self.replicas.running[number].metrics()
        return sum(map(int, re.findall(r"^sortition_streams_opened_total\{.*\} (\d+)$", metrics, re.MULTILINE)))

    def shares(self, proxy):
        """Opens STREAMS streams. Returns how many each replica got."""
        before = [self.opened(number) for number in (0, 1)]
        for _ in range(STREAMS):
            self.open_stream(proxy)
        after = [self.opened(number) for number in (0, 1)]
        shares = [now - then for then, now in zip(before, after)]
        self.assertEqual(sum(shares), STREAMS)
        return shares

    def weights(self, proxy):
        weights = proxy.weights()
        return [weights[address] for address in self.replicas.addresses]

    def check_idle(self, proxy):
        # Equal weights take turns. Each renewal of the weights may begin with either replica: one stream of a dozen.
        for share in self.shares(proxy):
            self.assertAlmostEqual(share, STREAMS / 2, delta=8)

    def check_loaded(self, proxy, until):
        """Loads the first replica past its one thread: its weight is at most 100, the other's near IDLE_WEIGHT. A share
        of a fifth allows a free replica that seems as busy as a quarter."""
        with Workers([self.replicas.addresses[0]], "--workers=3", "--sequences=32", "--vocabulary=128256",
                     "--heavy") as load:
            await_true("the load", lambda: self.replicas.streams(0) == 3)
            until()
            loaded, free = self.shares(proxy)
            load.stop()
        self.assertLess(loaded, STREAMS / 5)
        self.assertGreater(free, STREAMS * 4 / 5)

    def test_reports_out_of_band_shift_new_streams(self):
        with Envoy(self.replicas, policy()) as proxy:
            await_true("equal weights", lambda: self.weights(proxy) == [IDLE_WEIGHT, IDLE_WEIGHT])
            self.check_idle(proxy)

            def differ():
                loaded, free = self.weights(proxy)
                return free > 5 * loaded

            self.check_loaded(proxy, lambda: await_true("other weights", differ))
            await_true("equal weights", lambda: self.weights(proxy) == [IDLE_WEIGHT, IDLE_WEIGHT])

    def test_reports_in_trailers_shift_new_streams(self):
        with Envoy(self.replicas, policy(enable_oob_load_report=False, weight_expiration_period="60s")) as proxy:
            self.assertEqual(self.weights(proxy), [1, 1])

            def differ():
                # Workers reset their streams and so see no trailers. Unary calls end with them.
                client = Http2Client(proxy.address)
                client.sample()
                client.close()
                loaded, free = self.weights(proxy)
                return free > 5 * loaded

            self.check_loaded(proxy, lambda: await_true("other weights", differ))

    def test_without_reports_the_policy_takes_turns(self):
        self.replicas.stop(0)
        self.replicas.stop(1)
        quiet = self.enterContext(Replicas(2))
        quiet.start(0, 1)
        self.replicas = quiet
        with Envoy(quiet, policy()) as proxy:
            self.check_idle(proxy)
            self.assertEqual(self.weights(proxy), [1, 1])


if __name__ == "__main__":
    unittest.main()
