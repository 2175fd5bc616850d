"""Several replicas, behind the client's own list of targets and behind proxies: restarts, losses and new replicas cost
time and no token."""

import unittest

from proxies import Envoy, HaProxy, envoy_program
from replicas import Replicas, Workers, await_true


class ScaleOutTest(unittest.TestCase):
    def roll(self, replicas, targets):
        """Restarts every replica in turn, then loses one for good, under workers that check every token."""
        with Workers(targets, "--workers=3", "--check") as workers:
            await_true("the workers' streams", lambda: sum(replicas.all_streams()) == 3)
            for number in range(3):
                self.assertEqual(replicas.stop(number), 0)
                await_true("streams elsewhere", lambda: sum(replicas.all_streams()) == 3)
                replicas.start(number)
            await_true("a replica with streams", lambda: max(replicas.all_streams()) > 0)
            replicas.lose(max(replicas.running, key=replicas.streams))
            await_true("streams elsewhere", lambda: sum(replicas.all_streams()) == 3)
            found = workers.stop()
        self.assertEqual((found["failed"], found["different"]), (0, 0))
        self.assertGreater(found["tokens"], 1000)

    def test_rolling_restart_and_loss_with_the_clients_targets(self):
        with Replicas(3) as replicas:
            replicas.start(0, 1, 2)
            self.roll(replicas, replicas.addresses)

    def roll_behind(self, make_proxy):
        with Replicas(3) as replicas:
            replicas.start(0, 1, 2)
            with make_proxy(replicas) as proxy:
                self.roll(replicas, [proxy.address])

    def share_behind(self, make_proxy):
        """New replicas get their share as streams age."""
        with Replicas(3, "--max_stream_age=1s") as replicas:
            replicas.start(0)
            with make_proxy(replicas) as proxy, Workers([proxy.address], "--workers=6", "--check") as workers:
                await_true("six streams on the first replica", lambda: replicas.all_streams() == [6])
                replicas.start(1, 2)
                await_true("two streams on each", lambda: replicas.all_streams() == [2, 2, 2])
                found = workers.stop()
        self.assertEqual((found["failed"], found["different"]), (0, 0))

    def test_rolling_restart_and_loss_behind_haproxy(self):
        self.roll_behind(HaProxy)

    def test_share_behind_haproxy(self):
        self.share_behind(HaProxy)

    @unittest.skipUnless(envoy_program(), "there is no Envoy")
    def test_rolling_restart_and_loss_behind_envoy(self):
        self.roll_behind(Envoy)

    @unittest.skipUnless(envoy_program(), "there is no Envoy")
    def test_share_behind_envoy(self):
        self.share_behind(Envoy)


if __name__ == "__main__":
    unittest.main()
