"""Rows in a GPU's memory, for tests.

The driver is the tests' own, in this process and the server's; its device's memory is the host's.
"""

import ctypes
import os
import tempfile
import unittest

import numpy
import sortition
import sortition.local

from rows import OnCuda, VOCABULARY, row, serve

FAKE = os.environ.get("TEST_FAKE_CUDA", "")  # empty: a GPU's own driver
BYTES = 2 << 20
OPTIONS = {"vocabulary_size": VOCABULARY, "temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.1, "prompt": [1, 2]}
SAMPLER = sortition.local.Sampler()
WORK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

needs_fake = unittest.skipUnless(FAKE, "the driver is a GPU's own")
needs_kernels = unittest.skipUnless(os.environ.get("TEST_CUDA_KERNELS") == "1", "this build has no CUDA kernels")


def address_of(rows):
    return rows.__cuda_array_interface__["data"][0]


def host_view(rows):
    """The same bytes for the host: the tests' driver keeps them there."""
    return numpy.frombuffer((ctypes.c_uint8 * rows.bytes).from_address(address_of(rows)), numpy.uint8)


def words(logits):
    """Converts to bfloat16."""
    return (logits.view(numpy.uint32) >> 16).astype(numpy.uint16)


def widened(bfloat16):
    return (bfloat16.astype(numpy.uint32) << 16).view(numpy.float32)


def mapped():
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return sum("fake CUDA memory" in line for line in maps)


class Work:
    """Work that the driver's streams do when they are waited for."""

    def __init__(self, work):
        self._library = ctypes.CDLL("libcuda.so.1")
        self._work = WORK(lambda stream: work(stream or 0))

    def __enter__(self):
        self._library.FakeCudaSetWork(self._work)

    def __exit__(self, *exception):
        self._library.FakeCudaSetWork(None)


def matrix_in(rows, logits, offset=0):
    """Writes logits to the rows' memory, and returns them as a tensor there."""
    there = host_view(rows)[offset:offset + logits.nbytes].view(logits.dtype).reshape(logits.shape)
    there[...] = logits
    return OnCuda(there)


class ServerTest(unittest.TestCase):
    DEVICES = "cuda"

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.server = cls.start("memory")
        cls.addClassCleanup(cls.server.__exit__)

    @classmethod
    def start(cls, socket):
        return serve(f"--devices={cls.DEVICES}", "--connection_device_bytes=67108864",
                     f"--memory_listen=unix:{cls.folder}/{socket}",
                     environment={"LD_LIBRARY_PATH": os.environ.get("LD_LIBRARY_PATH", "")})

    def connect(self, **options):
        client = sortition.Client(self.server.serving["listen"], **options)
        self.addCleanup(client.close)
        return client

    def assert_same_tokens(self, client, rows, steps=6):
        """Steps three sequences, with rows that are a matrix or separate vectors in the memory."""
        sequences = [client.open(seed=seed, **OPTIONS) for seed in range(3)]
        expected = [SAMPLER.open(seed=seed, **OPTIONS) for seed in range(3)]
        for step in range(steps):
            logits = numpy.stack([words(row(10 * step + i)) for i in range(3)])
            there = matrix_in(rows, logits)
            if step % 2:
                there = [matrix_in(rows, logits[i], rows.bytes - (i + 1) * 2 * VOCABULARY) for i in range(3)]
            drawn = client.step(sequences, there, dtype="bfloat16")
            self.assertEqual([result.token for result in drawn],
                             [SAMPLER.draw(expected[i], widened(logits[i])).token for i in range(3)])
