"""Faults of servers and workers. Each fault is a function of a World, and asserts the most that the fault may cost."""

import glob
import json
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import time

from replicas import Replicas, Workers, await_true
from sortitiond_process import UNDER_SANITIZER
from tcp_proxy import TcpProxy

WORKERS = 3
SEQUENCES = 8
RELEASES = sorted(glob.glob(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../proto/released/*.binpb")))
SHARED_MEMORY = ("sortition_memory_connections", "sortition_memory_regions", "sortition_memory_bytes")


class World:
    """Servers and workers that check every token, for one fault; a context manager."""

    def __init__(self, servers=2, flags=(), through=None):
        self.replicas = Replicas(servers, *flags)
        self._through = through

    def __enter__(self):
        self.replicas.__enter__()
        self.replicas.start(*range(len(self.replicas.addresses)))
        return self

    def __exit__(self, *exception):
        self.replicas.__exit__(*exception)

    def workers(self, targets=None, *flags):
        return Workers(targets or self.replicas.addresses, f"--workers={WORKERS}", f"--sequences={SEQUENCES}",
                       "--check", *flags)

    def await_streams(self, count=WORKERS):
        await_true(f"{count} streams", lambda: sum(self.replicas.all_streams()) == count)

    def busiest(self):
        return max(self.replicas.running, key=self.replicas.streams)

    def descriptors(self, number):
        return len(os.listdir(f"/proc/{self.replicas.running[number].pid}/fd"))

    def resident_bytes(self, number):
        with open(f"/proc/{self.replicas.running[number].pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def gauge(self, number, name):
        found = re.search(rf"^{name}(?:{{[^}}]*}})? (\S+)$", self.replicas.running[number].metrics(), re.MULTILINE)
        return float(found.group(1))


def work_a_while(seconds=0.4):
    time.sleep(seconds)


def kill(_):
    """kill -9: the workers continue on another server."""
    with World() as world, world.workers() as workers:
        world.await_streams()
        work_a_while()
        lost = world.busiest()
        world.replicas.lose(lost)
        world.await_streams()
        work_a_while()
        world.replicas.start(lost)
        return workers.stop()


def drain(_):
    """SIGTERM: within ten seconds, with no failed step."""
    with World() as world, world.workers() as workers:
        world.await_streams()
        work_a_while()
        start = time.monotonic()
        if world.replicas.stop(world.busiest()) != 0:
            raise AssertionError("the server did not end well")
        took = time.monotonic() - start
        if took > 10:
            raise AssertionError(f"the drain took {took:.1f} s")
        world.await_streams()
        work_a_while()
        return workers.stop()


def roll(_):
    """Every server restarts in turn."""
    with World(3) as world, world.workers() as workers:
        world.await_streams()
        for number in range(3):
            if world.replicas.stop(number) != 0:
                raise AssertionError("a server did not end well")
            world.await_streams()
            world.replicas.start(number)
        work_a_while()
        return workers.stop()


def pause(seconds):
    """SIGSTOP, then SIGCONT: steps wait, and none is lost."""
    with World() as world, world.workers() as workers:
        world.await_streams()
        work_a_while()
        frozen = world.replicas.running[world.busiest()]
        frozen.send_signal(signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            frozen.send_signal(signal.SIGCONT)
        work_a_while()
        found = workers.stop()
        del found["slowest_ms"]  # the pause itself
        return found


def client_death(_):
    """Workers die: the server gets back all that it held for them, shared memory too, and others notice nothing."""
    with tempfile.TemporaryDirectory() as folder, \
            World(1, (f"--memory_listen=unix:{folder}/memory",)) as world, world.workers() as workers:
        world.await_streams()
        # Each worker has a ring, and memory for its rows.
        await_true("workers share memory", lambda: world.gauge(0, "sortition_memory_regions") >= 2 * WORKERS)
        before = world.descriptors(0)
        shared = [world.gauge(0, name) for name in SHARED_MEMORY]
        for _ in range(3):
            with world.workers() as doomed:
                world.await_streams(2 * WORKERS)
                doomed.kill()
                world.await_streams()
        await_true("descriptors back", lambda: world.descriptors(0) <= before)
        await_true("shared memory back", lambda: [world.gauge(0, name) for name in SHARED_MEMORY] == shared)
        await_true("no row waits", lambda: world.gauge(0, "sortition_queued_rows") <= WORKERS * SEQUENCES)
        return workers.stop()


def reset(_):
    """Connections end with a TCP reset."""
    with World(1) as world, TcpProxy(world.replicas.addresses[0]) as proxy, \
            world.workers([proxy.address]) as workers:
        world.await_streams()
        for _ in range(3):
            work_a_while()
            proxy.reset()
            world.await_streams()
        work_a_while()
        return workers.stop()


def half_open(_):
    """Connections carry nothing any more and do not end: steps fail at their deadline, and are stepped again."""
    with World(1) as world, TcpProxy(world.replicas.addresses[0]) as proxy, \
            world.workers([proxy.address], "--timeout=1s", "--patient") as workers:
        world.await_streams()
        work_a_while()
        proxy.silence()
        time.sleep(3)
        found = workers.stop()
        del found["slowest_ms"]  # the deadline
        return found


def descriptors(_):
    """More connections than the server has descriptors: workers continue, and health answers within a second
    afterwards."""
    with World(1) as world, world.workers() as workers:
        world.await_streams()
        server = world.replicas.running[0]
        used = world.descriptors(0)
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (used + 16, used + 16))
        host, port = world.replicas.addresses[0].rsplit(":", 1)
        flood = [socket.socket() for _ in range(300)]
        for connection in flood:
            connection.setblocking(False)
            connection.connect_ex((host, int(port)))
        work_a_while()
        for connection in flood:
            connection.close()
        start = time.monotonic()
        await_true("a new connection is welcomed", lambda: welcomes(host, int(port)))
        took = time.monotonic() - start
        if took > 1 and not UNDER_SANITIZER:
            raise AssertionError(f"the server took {took:.1f} s to serve after the flood")
        return workers.stop()


def welcomes(host, port):
    """True if the server greets a new connection with its HTTP/2 settings."""
    try:
        with socket.create_connection((host, port), timeout=0.5) as connection:
            connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            return len(connection.recv(9)) == 9
    except OSError:
        return False


def slow_reader(_):
    """A worker that reads no answer: the server stops reading from it, holds no more than its window, and drops it."""
    with World(1, ("--stalled_write=3s",)) as world, world.workers() as workers:
        world.await_streams()
        before = world.resident_bytes(0)
        deaf = subprocess.Popen([os.environ["TEST_DEAF_WORKER"], f"--target={world.replicas.addresses[0]}"],
                                stdin=subprocess.PIPE)
        try:
            world.await_streams(WORKERS + 1)
            world.await_streams(WORKERS)
        finally:
            deaf.kill()
            deaf.communicate()
        grown = world.resident_bytes(0) - before
        if grown > 512 << 20:
            raise AssertionError(f"the server grew by {grown >> 20} MB")
        return workers.stop()


def shm_full(_):
    """The machine has no memory to share: workers send their rows instead, and share memory once there is some."""
    all_found = {"tokens": 0, "failed": 0, "different": 0}
    with tempfile.TemporaryDirectory() as folder, World(1, (f"--memory_listen=unix:{folder}/memory",)) as world:
        pid = world.replicas.running[0].pid
        _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        # Files in memory are files: where they cannot grow, there is none.
        for limit in (0, most):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, most))
            with world.workers() as workers:
                world.await_streams()
                work_a_while()
                if (world.gauge(0, "sortition_memory_bytes") > 0) != (limit != 0):
                    raise AssertionError(f"memory is shared, or is not, under a limit of {limit}")
                all_found = add(all_found, workers.stop())
    return all_found


def old_client(_):
    """A worker of each release, which knows only its own contract, together with this tree's workers."""
    assert RELEASES, "there is no release in proto/released"
    with World(1) as world, world.workers() as workers:
        world.await_streams()
        found = {"tokens": 0, "failed": 0, "different": 0}
        for contract in RELEASES:
            old = subprocess.run([os.environ["TEST_OLD_WORKER"], f"--target={world.replicas.addresses[0]}",
                                  f"--contract={contract}"], check=False, stdout=subprocess.PIPE, text=True)
            if not old.stdout:
                raise AssertionError(f"the worker of {contract} ended with {old.returncode}")
            found = add(found, json.loads(old.stdout))
        return add(found, workers.stop())


def add(one, other):
    """Sums the findings of two runs of workers; resuming between them is not counted as a fault."""
    return {name: one[name] + other[name] for name in ("tokens", "failed", "different")}


def loss(seconds):
    """30% of all packets are lost. To be run where loopback is this test's own (chaos.py does that)."""
    with World() as world, world.workers(None, "--timeout=60s") as workers:
        world.await_streams()
        drop = ["iptables", "-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.3", "-j", "DROP"]
        subprocess.run(drop, check=True)
        time.sleep(seconds)
        drop[1] = "-D"
        subprocess.run(drop, check=True)
        work_a_while(2)
        found = workers.stop()
        del found["slowest_ms"]  # retransmissions
        return found


# name: (fault, its argument in a fast pass, in a long one)
FAULTS = {
    "kill": (kill, None, None),
    "drain": (drain, None, None),
    "roll": (roll, None, None),
    "pause": (pause, 1, 10),
    "client_death": (client_death, None, None),
    "reset": (reset, None, None),
    "half_open": (half_open, None, None),
    "descriptors": (descriptors, None, None),
    "slow_reader": (slow_reader, None, None),
    "shm_full": (shm_full, None, None),
    "old_client": (old_client, None, None),
    "loss": (loss, 2, 8),
}
