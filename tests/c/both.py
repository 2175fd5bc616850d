"""Shared by the Python tests of this folder: the server, and programs that run against it."""

import contextlib
import os
import re
import subprocess
import tempfile

from sortitiond_process import Sortitiond, binary


class Addresses(tuple):
    """A server's addresses: TCP, a Unix socket, a memory socket. `folder` is its, with the key of its receipts."""

    process = None
    folder = ""

    def compact_rows(self):
        """Returns the number of compact rows that the server has decided."""
        count = re.search(r'^sortition_compact_rows_total{outcome="decided"} (\d+)', self.process.metrics(), re.M)
        return int(count.group(1))

    def verified(self, name):
        """Returns sortitionctl's verdict on the receipts that a program has written to the folder."""
        at = f"{self.folder}/{name}"
        return output_of(os.environ["TEST_SORTITIONCTL"], "verify", f"{at}.receipts", f"--seeds={at}.seeds",
                         f"--keys={self.folder}/key.pub")


@contextlib.contextmanager
def server():
    """Yields the Addresses of a server."""
    with tempfile.TemporaryDirectory() as folder:
        key = f"{folder}/key.pem"
        output_of("openssl", "genpkey", "-algorithm", "ed25519", "-out", key)
        output_of("openssl", "pkey", "-in", key, "-pubout", "-out", f"{folder}/key.pub")
        sockets = f"unix:{folder}/sortition.sock", f"unix:{folder}/memory.sock"
        with Sortitiond(binary(), f"--listen=127.0.0.1:0,{sockets[0]}", f"--memory_listen={sockets[1]}",
                        "--metrics_listen=127.0.0.1:0", f"--receipt_key={key}") as process:
            tcp = next(address for address in process.serving["listen"].split(",") if not address.startswith("unix:"))
            addresses = Addresses((tcp, *sockets))
            addresses.process, addresses.folder = process, folder
            yield addresses


def output_of(*command, **environment):
    """Runs a program to its end; its output, or an assertion with all that it printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, **environment})
    assert done.returncode == 0, f"{' '.join(command)}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
