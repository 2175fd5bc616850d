"""sortitiond as a separate process, for tests in Python."""

import json
import os
import random
import socket
import subprocess
import urllib.request


# Only a sanitizer's settings reach the processes of a test.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name.endswith("SAN_OPTIONS")}
# A sanitizer needs memory and time: sizes and times do not measure the server then.
UNDER_SANITIZER = bool(ENVIRONMENT)


class Sortitiond:
    """A running server on free ports; a context manager."""

    LOOPBACK = ("--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0")

    def __init__(self, binary, *arguments, environment=None):
        self._process = subprocess.Popen([binary, *arguments], env={**ENVIRONMENT, **(environment or {})},
                                         stderr=subprocess.PIPE, text=True)
        self.serving = None
        lines = []
        for line in self._process.stderr:
            lines.append(line)
            if '"event":"serving"' in line:
                self.serving = json.loads(line)
                break
        if self.serving is None:
            self._process.stderr.close()
            self._process.wait()
            raise RuntimeError("sortitiond did not start: " + "".join(lines))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self._process.returncode is None:
            self.terminate()
            self.wait()

    @property
    def pid(self):
        return self._process.pid

    def send_signal(self, number):
        self._process.send_signal(number)

    def terminate(self):
        self._process.terminate()

    def kill(self):
        self._process.kill()

    def wait(self, timeout=None):
        """The exit status; raises subprocess.TimeoutExpired if it takes longer, in seconds."""
        self._process.communicate(timeout=timeout)
        return self._process.returncode

    @property
    def exit_status(self):
        return self._process.returncode

    def metrics(self):
        """The text that Prometheus would scrape."""
        with urllib.request.urlopen(f"http://{self.serving['metrics']}/metrics", timeout=20) as response:
            return response.read().decode()


def refuse_row(address, folder, *flags):
    """Has the server refuse a row of logits that are no numbers. Writes the row into the folder."""
    row = os.path.join(folder, "nan.f32")
    with open(row, "wb") as file:
        file.write(b"\0\0\xc0\x7f" * 8)
    refused = subprocess.run([os.environ["TEST_SORTITIONCTL"], "sample", row, "--dtype=f32", f"--server={address}",
                              *flags], capture_output=True, text=True, check=False)
    if "LOGIT_NAN" not in refused.stderr:
        raise RuntimeError(f"the row is not refused: {refused.stderr}")


def free_port():
    """A loopback port that is free at the moment, and that the kernel gives to no connection meanwhile."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        first_given = int(file.read().split()[0])
    while True:
        port = random.randrange(1024, max(first_given, 2048))
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def tls_flags(folder):
    """Flags of TLS with a certificate for localhost that is made in the folder and signs itself."""
    key, certificate = f"{folder}/tls.key", f"{folder}/tls.crt"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return f"--tls_key={key}", f"--tls_certificate={certificate}"


def make_certificates(folder, address):
    """An authority (ca.crt), and a certificate by it that serves as "sortition" and at the address, and identifies a
    worker (tls.crt, tls.key)."""
    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.crt")
    openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=sortition",
            "-keyout", "tls.key", "-out", "tls.csr")
    with open(os.path.join(folder, "names"), "w", encoding="utf-8") as file:
        file.write(f"subjectAltName=DNS:sortition,IP:{address}\n")
    openssl("x509", "-req", "-in", "tls.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
            "-extfile", "names", "-out", "tls.crt")


def binary():
    """The server to test, as CTest names it."""
    return os.environ["TEST_SORTITIOND"]
