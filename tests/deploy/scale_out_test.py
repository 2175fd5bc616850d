"""Several replicas, behind the client's own list of targets and behind HAProxy: restarts, losses and new replicas cost
time and no token."""

import csv
import os
import socket
import subprocess
import tempfile
import unittest

import manifests
from replicas import Replicas, Workers, await_true
from sortitiond_process import free_port


class Proxy:
    """The tree's HAProxy configuration with addresses of this machine; a context manager. Serves once it knows which
    replicas are up."""

    def __init__(self, replicas):
        self.address = f"127.0.0.1:{free_port()}"
        self._folder = tempfile.TemporaryDirectory()
        self._statistics = os.path.join(self._folder.name, "statistics.sock")
        with open(os.path.join(manifests.ROOT, "deploy/haproxy/haproxy.cfg"), encoding="utf-8") as file:
            lines = [line for line in file.read().splitlines() if not line.strip().startswith("server ")]
        for number, (address, metrics) in enumerate(zip(replicas.addresses, replicas.metrics_addresses)):
            lines.append(f"    server replica-{number} {address} port {metrics.rsplit(':', 1)[1]}")
        lines += ["global", f"    stats socket {self._statistics}"]
        path = os.path.join(self._folder.name, "haproxy.cfg")
        with open(path, "w", encoding="utf-8") as file:
            file.write("\n".join(lines).replace("bind :50050", f"bind {self.address}") + "\n")
        self._process = subprocess.Popen(["haproxy", "-q", "-db", "-f", path])
        await_true("the proxy", lambda: self._up() == {f"replica-{number}" for number in replicas.running})

    def _up(self):
        """The replicas that have passed their last check, once all have been checked."""
        with socket.socket(socket.AF_UNIX) as connection:
            if connection.connect_ex(self._statistics) != 0:
                return None
            connection.sendall(b"show stat\n")
            text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        rows = [row for row in csv.DictReader(text.lstrip("# ").splitlines()) if row["svname"].startswith("replica-")]
        if any(row["check_status"].removeprefix("* ") in ("INI", "") for row in rows):
            return None
        return {row["svname"] for row in rows if row["status"].startswith("UP")}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


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

    def test_rolling_restart_and_loss_behind_a_proxy(self):
        with Replicas(3) as replicas:
            replicas.start(0, 1, 2)
            with Proxy(replicas) as proxy:
                self.roll(replicas, [proxy.address])

    def test_new_replicas_get_their_share_as_streams_age(self):
        with Replicas(3, "--max_stream_age=1s") as replicas:
            replicas.start(0)
            with Proxy(replicas) as proxy, Workers([proxy.address], "--workers=6", "--check") as workers:
                await_true("six streams on the first replica", lambda: replicas.all_streams() == [6])
                replicas.start(1, 2)
                await_true("two streams on each", lambda: replicas.all_streams() == [2, 2, 2])
                found = workers.stop()
        self.assertEqual((found["failed"], found["different"]), (0, 0))


if __name__ == "__main__":
    unittest.main()
