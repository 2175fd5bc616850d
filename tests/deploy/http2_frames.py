"""HTTP/2 as frames, to send bytes that no library sends."""

import socket

DATA, HEADERS, RESET, SETTINGS, CONTINUATION = 0, 1, 3, 4, 9
END_STREAM, END_HEADERS = 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind, flags, stream, body=b""):
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def literal(name, value):
    """A header of HPACK that no table keeps."""
    return b"\x10" + b"".join(
        (bytes([len(text)]) if len(text) < 127 else b"\x7f" + varint(len(text) - 127)) + text
        for text in (name, value))


def varint(number):
    digits = b""
    while number >= 128:
        digits += bytes([number % 128 | 128])
        number //= 128
    return digits + bytes([number])


class Http2Client:
    """A connection that sends frames as they are."""

    CALL, SAMPLE = (literal(b":method", b"POST") + literal(b":scheme", b"http") + literal(b":authority", b"a")
                    + literal(b":path", b"/sortition.v1.SamplingService/" + method)
                    + literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")
                    for method in (b"Stream", b"Sample"))

    def __init__(self, address):
        host, port = address.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), timeout=30)
        self.send(PREFACE + frame(SETTINGS, 0, 0))

    def send(self, data):
        """False if the other side has ended the connection."""
        try:
            self._socket.sendall(data)
        except OSError:
            return False
        return True

    def receive_all(self):
        """Receives until the other side ends the connection."""
        received = b""
        try:
            while data := self._socket.recv(65536):
                received += data
        except ConnectionResetError:
            pass
        return received

    def sample(self):
        """Draws a token of one row of two logits in a unary call, the connection's only one."""
        self.begin_sample()
        self.end_sample()

    def begin_sample(self):
        """Sends the headers, to which nothing is answered."""
        self.send(frame(HEADERS, END_HEADERS, 1, self.SAMPLE))

    def end_sample(self):
        message = b"\x0a\x08" + bytes(8) + b"\x10\x01\x18\x02\x2a\x00"  # logits, dtype, vocabulary_size, a row
        self.send(frame(DATA, END_STREAM, 1, b"\0" + len(message).to_bytes(4, "big") + message))
        self.await_end()

    def await_end(self):
        """Waits for the end of the first call: by an answer, by a reset, or with the connection."""
        received = self._socket.makefile("rb")
        while len(head := received.read(9)) == 9:
            length, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], head[5:]
            received.read(length)
            ends = kind == RESET or (kind in (HEADERS, DATA) and flags & END_STREAM)
            if stream == b"\0\0\0\x01" and ends:
                return

    def close(self):
        self._socket.close()
