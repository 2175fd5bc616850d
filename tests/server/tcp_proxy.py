"""A TCP proxy on loopback. A test can reset its connections, or leave them open while they carry no byte."""

import socket
import struct
import threading
import time


class TcpProxy:
    """Carries bytes from a free port to the target, "host:port"; a context manager. As a balancer it resets connections
    over which no byte has come for `idle_s`. `watch` sees all bytes before they are passed on, and whether the target
    has sent them. They are lost if it returns True."""

    def __init__(self, target, idle_s=None, watch=lambda data, from_target: False):
        self._idle_s = idle_s
        self._watch_bytes = watch
        self._moved = {}  # from pairs to the time of their last byte; guarded by _lock
        self.cut = 0  # connections that were reset for `idle_s`
        host, port = target.rsplit(":", 1)
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._pairs = []  # guarded by _lock
        self._silenced = set()  # guarded by _lock
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.reset()

    def reset(self):
        """Every connection of now ends with a TCP reset, on both sides."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            self._end(pair)

    @staticmethod
    def _end(pair):
        for side in pair:
            side.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # Wakes the thread that reads from it.
            try:
                side.shutdown(socket.SHUT_RD)
            except OSError:
                pass
            side.close()

    def silence(self):
        """Keeps present connections open, and loses all bytes that are sent over them."""
        with self._lock:
            self._silenced.update(id(side) for pair in self._pairs for side in pair)

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (client, server)
            with self._lock:
                self._pairs.append(pair)
                self._moved[pair] = time.monotonic()
            for source, sink in (pair, pair[::-1]):
                threading.Thread(target=self._carry, args=(pair, source, sink), daemon=True).start()
            if self._idle_s:
                threading.Thread(target=self._watch, args=(pair,), daemon=True).start()

    def _watch(self, pair):
        while True:
            with self._lock:
                if pair not in self._pairs:
                    return
                left = self._moved[pair] + self._idle_s - time.monotonic()
                if left <= 0:
                    self._pairs.remove(pair)
                    self.cut += 1
                    break
            time.sleep(left)
        self._end(pair)

    def _carry(self, pair, source, sink):
        try:
            while data := source.recv(1 << 16):
                with self._lock:
                    lost = id(source) in self._silenced
                    self._moved[pair] = time.monotonic()
                lost = self._watch_bytes(data, source is pair[1]) or lost
                if not lost:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass
