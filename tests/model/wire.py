"""Real servers on loopback, and streams to them by plain gRPC."""

import hashlib
import pathlib
import queue

import grpc

from contract import SampleRequest, SampleResponse, StreamRequest, StreamResponse
from sortitiond_process import Sortitiond

SERVICE = "/sortition.v1.SamplingService"
LONGEST_STREAM_S = 300


def token_of(tenant):
    return f"token of {tenant}"


class Servers:
    """Two servers with the same clients, policies and key of checkpoints; a context manager that ends them."""

    def __init__(self, binary, folder, policies, tenants, seconds):
        folder = pathlib.Path(folder)
        lines = [f"{tenant} sample sha256:{hashlib.sha256(token_of(tenant).encode()).hexdigest()}"
                 for tenant in tenants]
        files = {"clients": "\n".join(lines) + "\n", "policies": policies, "checkpoint_key": "k" * 64}
        for name, text in files.items():
            (folder / name).write_text(text, encoding="ascii")
        flags = [f"--{name}={folder / name}" for name in files]
        # A server ends by itself, also after this process was killed.
        guard = ["timeout", "--signal=KILL", str(int(seconds) + 1200), binary]
        self.running, self.channels = [], []
        for _ in range(2):
            self.running.append(Sortitiond(*guard, "--listen=127.0.0.1:0", "--metrics_listen=", "--cpu_threads=1",
                                           *flags))
            self.channels.append(grpc.insecure_channel(self.address(-1)))

    def address(self, number):
        serving = self.running[number].serving
        listen = serving["listen"]
        return listen if isinstance(listen, str) else listen[0]

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        for channel in self.channels:
            channel.close()
        for server in self.running:
            server.__exit__(None, None, None)


def sample(channel, request, tenant):
    """The answer of a call."""
    call = channel.unary_unary(f"{SERVICE}/Sample", SampleRequest.SerializeToString, SampleResponse.FromString)
    return call(request, timeout=LONGEST_STREAM_S, metadata=[("authorization", f"Bearer {token_of(tenant)}")])


class Stream:
    """One stream: messages leave in order, and answers are read one by one."""

    def __init__(self, channel, session, tenant):
        self.sent = queue.SimpleQueue()
        method = channel.stream_stream(f"{SERVICE}/Stream", StreamRequest.SerializeToString, StreamResponse.FromString)
        self.call = method(iter(self.sent.get, None), timeout=LONGEST_STREAM_S,
                           metadata=[("authorization", f"Bearer {token_of(tenant)}")])
        request = StreamRequest()
        request.hello.worker_session = session
        self.send(request)
        self.welcome = self.receive().welcome

    def send(self, request):
        self.sent.put(request)

    def receive(self):
        return next(self.call)

    def close(self):
        self.sent.put(None)
        self.call.cancel()
