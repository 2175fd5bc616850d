"""Shared by the Python tests of this folder: the server, and programs that run against it."""

import contextlib
import os
import subprocess
import tempfile

from sortitiond_process import Sortitiond, binary


@contextlib.contextmanager
def server():
    """Yields the addresses of a server: TCP, a Unix socket, a memory socket."""
    with tempfile.TemporaryDirectory() as folder:
        sockets = f"unix:{folder}/sortition.sock", f"unix:{folder}/memory.sock"
        with Sortitiond(binary(), f"--listen=127.0.0.1:0,{sockets[0]}", f"--memory_listen={sockets[1]}",
                        "--metrics_listen=127.0.0.1:0") as process:
            tcp = next(address for address in process.serving["listen"].split(",") if not address.startswith("unix:"))
            yield (tcp, *sockets)


def output_of(*command, **environment):
    """Runs a program to its end; its output, or an assertion with all that it printed."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          env={**os.environ, **environment})
    assert done.returncode == 0, f"{' '.join(command)}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout
