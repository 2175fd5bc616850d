"""Workers that pause for longer than a balancer on the way lets a connection or a stream be idle: no token is lost."""

import re
import types
import unittest

from proxies import Envoy, HaProxy, envoy_program
from replicas import Replicas, Workers, await_true
from tcp_proxy import TcpProxy

IDLE_S = 1
PAUSE_S = 2
WORKERS = ("--workers=2", "--sequences=2", "--check", f"--pause={PAUSE_S}s")


class IdleTest(unittest.TestCase):
    def setUp(self):
        self.replicas = self.enterContext(Replicas(1))
        self.replicas.start(0)

    def count(self, series):
        """The sum of the replica's counters that match."""
        metrics = self.replicas.running[0].metrics()
        return sum(map(int, re.findall(rf"^{series} (\d+)$", metrics, re.MULTILINE)))

    def opened(self):
        return self.count(r"sortition_streams_opened_total\{.*\}")

    def work(self, address, until):
        """Two workers; each step of theirs is followed by a pause."""
        with Workers([address], *WORKERS) as workers:
            await_true("pauses", until)
            found = workers.stop()
        self.assertEqual((found["failed"], found["different"]), (0, 0))

    def test_direct_connection_that_is_cut(self):
        with TcpProxy(self.replicas.addresses[0], IDLE_S) as balancer:
            self.work(balancer.address, lambda: balancer.cut >= 4)

    def test_stream_that_haproxy_cuts(self):
        def change(text):
            return re.sub(r"timeout (client|server) 2h", rf"timeout \1 {IDLE_S}s", text)

        with HaProxy(self.replicas, change=change) as proxy:
            self.work(proxy.address, lambda: self.opened() >= 6)

    @unittest.skipUnless(envoy_program(), "there is no Envoy")
    def test_stream_that_envoy_cuts(self):
        def change(configuration):
            manager_of(configuration)["stream_idle_timeout"] = f"{IDLE_S}s"

        with Envoy(self.replicas, change) as proxy:
            self.work(proxy.address, lambda: self.opened() >= 6)
            self.assertGreaterEqual(proxy.count("http.workers.downstream_rq_idle_timeout"), 4)

    @unittest.skipUnless(envoy_program(), "there is no Envoy")
    def test_envoys_pings_keep_connections_on_both_sides(self):
        with self.subTest("pings"):
            # A server ends a connection that pings more often than every ten seconds.
            cut, opened = self.pass_balancers({"interval": "11s", "timeout": "5s"}, idle_s=14, pause_s=22)
            self.assertEqual((cut, opened), ((0, 0), 1))
        with self.subTest("no pings"):
            # Where the worker's side is cut first, the end of its stream passes the other side, which is idle again.
            cut, opened = self.pass_balancers(None, IDLE_S, 4 * IDLE_S)
            self.assertGreater(min(cut), 0)
            self.assertGreater(opened, 1)

    def pass_balancers(self, pings, idle_s, pause_s):
        """A worker, a balancer, Envoy, a balancer, the replica: two steps with a pause between them. Returns how many
        connections each of the balancers has cut, and how many streams were opened."""
        opened, tokens = self.opened(), self.count("sortition_tokens_total")

        def change(configuration):
            (cluster,) = configuration["static_resources"]["clusters"]
            (upstream,) = cluster["typed_extension_protocol_options"].values()
            for options in (manager_of(configuration), upstream["explicit_http_config"]):
                self.assertEqual(options["http2_protocol_options"].pop("connection_keepalive"),
                                 {"interval": "30s", "timeout": "10s"})
                if pings:
                    options["http2_protocol_options"]["connection_keepalive"] = pings

        with TcpProxy(self.replicas.addresses[0], idle_s) as behind:
            seen = types.SimpleNamespace(addresses=[behind.address], running=[0])
            with Envoy(seen, change) as proxy, TcpProxy(proxy.address, idle_s) as balancer, \
                    Workers([balancer.address], "--sequences=2", f"--pause={pause_s}s") as worker:
                await_true("two steps", lambda: self.count("sortition_tokens_total") >= tokens + 4)
                cut = (balancer.cut, behind.cut)
                worker.kill()
        return cut, self.opened() - opened


def manager_of(configuration):
    (listener,) = configuration["static_resources"]["listeners"]
    (filter_,) = listener["filter_chains"][0]["filters"]
    return filter_["typed_config"]


if __name__ == "__main__":
    unittest.main()
