"""Several servers and their workers, as processes."""

import json
import os
import re
import subprocess
import time

from sortitiond_process import ENVIRONMENT, Sortitiond, binary, free_port

DEADLINE_S = 30


def await_true(what, condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


class Replicas:
    """Servers that keep their addresses over restarts; a context manager."""

    def __init__(self, count, *flags):
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self.metrics_addresses = [f"127.0.0.1:{free_port()}" for _ in range(count)]
        self._flags = flags
        self.running = {}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for server in self.running.values():
            server.kill()
            server.wait()

    def start(self, *numbers, program=None):
        """Starts servers; `program` stands for the binary under test."""
        for number in numbers:
            self.running[number] = Sortitiond(
                program or binary(), f"--listen={self.addresses[number]}",
                f"--metrics_listen={self.metrics_addresses[number]}", "--cpu_threads=1", *self._flags)

    def stop(self, number):
        """A drain; the exit status."""
        self.running[number].terminate()
        return self.running.pop(number).wait(DEADLINE_S)

    def lose(self, number):
        self.running[number].kill()
        self.running.pop(number).wait()

    def streams(self, number):
        """Number of open streams over all transports."""
        metrics = self.running[number].metrics()
        return sum(map(int, re.findall(r'^sortition_streams\{.*\} (\d+)$', metrics, re.MULTILINE)))

    def all_streams(self):
        return [self.streams(number) for number in sorted(self.running)]


class Workers:
    """scale_worker in the background; a context manager that ends it if it has not ended."""

    def __init__(self, targets, *flags):
        self._process = subprocess.Popen(
            [os.environ["TEST_SCALE_WORKER"], f"--targets={','.join(targets)}", *flags], env=ENVIRONMENT,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def kill(self):
        self._process.kill()
        self._process.wait()

    def stop(self):
        """Results of their work."""
        out, _ = self._process.communicate(timeout=DEADLINE_S)
        return json.loads(out)
