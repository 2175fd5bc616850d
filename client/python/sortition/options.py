"""How a client reaches the service: its transport, its retries, its part of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional


@dataclass(frozen=True)
class Transport:
    """How messages and rows travel to a server. Tokens do not depend on it.

    `kind` is "grpc" (a gRPC stream over TCP or a Unix socket), "ring" (message queues in memory shared with the server;
    every target is then the path of a memory socket, "unix:path") or "auto" (a ring where the server offers one to this
    machine, otherwise gRPC).

    `shared_memory_bytes` is the size of the memory shared with a server on this machine, through which rows travel
    instead of the stream; 0 turns it off. Such a server runs as this process's user, as root or as the user with the
    number `memory_server_user`; memory sockets of other users are not used.

    `tls` (absent: plain text) may have "root_certificates", "certificate_chain", "private_key" (PEM texts) and
    "server_name". `token` is shown to the server as a bearer token. After `keepalive` seconds without traffic the
    connection is probed. A batch travels in messages of at most `message_bytes` bytes and
    `message_rows` tensor rows; a row with drafts or scores has several.
    """

    kind: str = "auto"
    shared_memory_bytes: int = 64 << 20
    memory_server_user: Optional[int] = None
    tls: Optional[Mapping[str, str]] = None
    token: str = ""
    keepalive: float = 20
    message_bytes: int = 2 << 20
    message_rows: int = 256


@dataclass(frozen=True)
class Retry:
    """Waits of a client for servers, in seconds.

    A stream that is not welcomed within `connect_timeout` is given up. The pause between rounds over all targets is
    doubled from `backoff_initial` to `backoff_max`, each cut by up to half at random. `fallback_stay` is the longest
    stay in process after a target is back, while a sequence with mirostat or adaptive_p is open that was stepped here.
    """

    connect_timeout: float = 5
    backoff_initial: float = 0.05
    backoff_max: float = 0.8
    fallback_stay: float = 300


@dataclass(frozen=True)
class Shard:
    """The part of every row that this process has as rank `index` of `count`: `tokens` elements from `first_token` on.

    The shards of all ranks cover the vocabulary, `vocabulary_size` tokens, and do not overlap.
    """

    index: int
    count: int
    first_token: int
    tokens: int
    vocabulary_size: int

    @classmethod
    def even(cls, index: int, count: int, vocabulary_size: int) -> "Shard":
        """Returns the shard of rank `index`, where the shards of `count` ranks differ by at most one token."""
        first = vocabulary_size * index // count
        return cls(index, count, first, vocabulary_size * (index + 1) // count - first, vocabulary_size)
