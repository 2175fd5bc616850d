"""The adapters' logits reach the service in the GPU's memory if that is shared, else through the host, with a message.

The tests' driver keeps device memory on the host. The tensors are fakes with the part of torch's that the adapters use.
"""

import math
import types
import unittest
from unittest import mock

import numpy
import sortition
import sortition.local
from sortition import _native
from sortition import logits as logits_module
from sortition.logits import LogitsTransfer

from on_device import FAKE, OPTIONS, SAMPLER, ServerTest, host_view, needs_fake, needs_kernels
from rows import OnCuda, VOCABULARY, row


class FakeTensor(OnCuda):
    """A tensor on CUDA device 0 of the tests' driver, or on the CPU."""

    def __init__(self, array, is_cuda=True, device=0):
        super().__init__(array)
        self.array, self.is_cuda, self.device = array, is_cuda, types.SimpleNamespace(index=device)
        self.shape = array.shape

    def numel(self):
        return math.prod(self.shape)

    def element_size(self):
        return self.array.itemsize

    def detach(self):
        return self

    def cpu(self):
        return self.array

    def copy_(self, other):
        self.array[...] = other.array


def fake_tensor_of(rows, like):
    return FakeTensor(host_view(rows)[:like.array.nbytes].view(like.array.dtype).reshape(like.shape))


@needs_fake
class TransferTest(ServerTest):
    def setUp(self):
        replaced = mock.patch.object(logits_module, "tensor_of", fake_tensor_of)
        replaced.start()
        self.addCleanup(replaced.stop)

    def assert_same_tokens(self, sampler, transfer, rows=3, steps=4):
        """Steps a number of sequences. With the fakes torch has no current stream, so it is named."""
        sequences, expected = ([each.open(seed=seed, **OPTIONS) for seed in range(rows)] for each in (sampler, SAMPLER))
        for step in range(steps):
            matrix = numpy.stack([row(10 * step + i) for i in range(rows)])
            moved = transfer.move(FakeTensor(matrix.copy()))
            if isinstance(moved, FakeTensor):
                moved = OnCuda(moved.array)
            drawn = sampler.step(sequences, moved, stream=0)
            self.assertEqual([result.token for result in drawn],
                             [SAMPLER.draw(expected[i], matrix[i]).token for i in range(rows)])


@needs_kernels
class Shared(TransferTest):
    def test_logits_stay_on_the_device(self):
        client = self.connect()
        transfer = LogitsTransfer(client)
        self.assertEqual((transfer.path, transfer.note), ("", ""))
        with self.assertLogs("sortition", "INFO") as logged:
            self.assert_same_tokens(client, transfer)
        self.assertEqual((transfer.path, transfer.note), ("device", ""))
        self.assertEqual(len(logged.records), 1, "a change is logged, not each step")

    def test_batches_may_grow(self):
        client = self.connect()
        transfer = LogitsTransfer(client)
        for elements in (1 << 10, 1 << 20, 1 << 10, 3 << 20):  # up to 12 MB; the first allocation has 2 MB
            matrix = numpy.arange(elements, dtype=numpy.float32).reshape(1, elements)
            moved = transfer.move(FakeTensor(matrix))
            self.assertIsNot(moved.array, matrix)
            self.assertTrue((moved.array == matrix).all())
            self.assertEqual((transfer.path, transfer.note), ("device", ""))
            self.assert_same_tokens(client, transfer, steps=1)

    def test_memory_beyond_quota_goes_through_the_host(self):
        client = self.connect()
        transfer = LogitsTransfer(client)
        self.assert_same_tokens(client, transfer)
        large = FakeTensor(numpy.zeros((1, 20 << 20), numpy.float32))  # 80 MB, of 64
        self.assertIs(transfer.move(large), large.array)
        self.assertEqual(transfer.path, "host")
        self.assertIn("(connection_device_bytes 67108864)", transfer.note)
        self.assert_same_tokens(client, transfer)
        self.assertEqual((transfer.path, transfer.note), ("device", ""))

    def test_a_server_that_dies_is_said(self):
        with self.start("another") as server:
            client = sortition.Client(server.serving["listen"], fallback="in_process", in_process_threads=1)
            self.addCleanup(client.close)
            transfer = LogitsTransfer(client)
            self.assert_same_tokens(client, transfer)
            self.assertEqual(transfer.path, "device")
            server.kill()
            server.wait()
        self.assert_same_tokens(client, transfer)
        with self.assertLogs("sortition", "WARNING"):
            transfer = LogitsTransfer(client)
            self.assert_same_tokens(client, transfer)
        self.assertEqual((transfer.path, transfer.note), ("host", "the stream shares no memory"))


class NotShared(TransferTest):
    DEVICES = "cpu"

    def test_a_server_without_the_device(self):
        client = self.connect()
        transfer = LogitsTransfer(client)
        with self.assertLogs("sortition", "WARNING") as logged:
            self.assert_same_tokens(client, transfer)
        self.assertEqual((transfer.path, transfer.note), ("host", "the server takes no memory of this device"))
        self.assertIn(transfer.note, logged.output[0])
        self.assertEqual(len(logged.records), 1)

    @needs_kernels
    def test_first_tokens_leave_the_device_for_a_server_elsewhere(self):
        elsewhere = sortition.Transport("grpc", shared_memory_bytes=0)
        client = sortition.Client(self.server.serving["listen"], rows="compact(64)", transport=elsewhere)
        self.addCleanup(client.close)
        transfer = LogitsTransfer(client)
        with self.assertLogs("sortition", "INFO"):
            self.assert_same_tokens(client, transfer)
        self.assertEqual((transfer.path, transfer.note), ("device", ""))

    def test_a_device_without_such_memory(self):
        transfer = LogitsTransfer(self.connect())
        with self.assertLogs("sortition", "WARNING"):
            transfer.move(FakeTensor(numpy.zeros((1, 4), numpy.float32), device=7))
        self.assertEqual(transfer.path, "host")
        self.assertIn("NOT_FOUND", transfer.note)

    def test_in_process(self):
        sampler = sortition.local.Sampler()
        transfer = LogitsTransfer(sampler)
        with self.assertLogs("sortition", "WARNING"):
            self.assert_same_tokens(sampler, transfer)
        self.assertEqual((transfer.path, transfer.note), ("host", "they are sampled in this process"))

    def test_logits_on_the_host_are_not_moved(self):
        transfer = LogitsTransfer(self.connect())
        tensor = FakeTensor(numpy.zeros((1, 4), numpy.float32), is_cuda=False)
        with self.assertNoLogs("sortition"):
            self.assertIs(transfer.move(tensor), tensor.array)
        self.assertEqual((transfer.path, transfer.note), ("host", ""))


class StubClient(sortition.Client):
    """A client whose way to a server is set by the test."""

    in_process, transport, row_memory = False, "grpc", False

    def __init__(self, rows="auto"):
        self.rows = rows


class Told(unittest.TestCase):
    """An engine's log says who draws its tokens."""

    def lines(self, action):
        with self.assertLogs("sortition", "INFO") as logged:
            made = action()
        return made, [(record.levelname, record.getMessage()) for record in logged.records]

    def test_the_start_is_said(self):
        head = f"Sortition {sortition.__version__}, law {sortition.LAW_VERSION}"
        _, lines = self.lines(lambda: LogitsTransfer(sortition.local.Sampler()))
        self.assertEqual(lines, [
            ("INFO", f"{head}. Tokens are drawn in process, by the CPU kernels {_native.CPU_KERNELS}")])
        for rows, said in (("auto", "long rows compact"), ("compact(64)", "rows compact"), ("full", "rows whole")):
            _, lines = self.lines(lambda rows=rows: LogitsTransfer(StubClient(rows)))
            self.assertEqual(lines, [("INFO", f"{head}. Tokens are drawn by the service over grpc, {said}")])

    def test_a_fall_back_and_the_return_are_said_once(self):
        client = StubClient()
        transfer, _ = self.lines(lambda: LogitsTransfer(client))
        tensor = FakeTensor(numpy.zeros((1, 4), numpy.float32), is_cuda=False)

        def steps(in_process):
            client.in_process = in_process
            return self.lines(lambda: [transfer.move(tensor) for _ in range(3)])[1]

        here = f"Tokens are drawn in process, by the CPU kernels {_native.CPU_KERNELS}"
        self.assertEqual(steps(True), [("WARNING", f"Sortition: no target answers. {here}")])
        client.transport, client.row_memory = "ring", True
        self.assertEqual(steps(False), [("INFO", "Sortition: a target answers. "
                                         "Tokens are drawn by the service over ring, rows in shared memory")])

    def test_a_start_without_its_service_is_a_warning(self):
        client = StubClient()
        client.in_process = True
        _, ((level, text),) = self.lines(lambda: LogitsTransfer(client))
        self.assertEqual(level, "WARNING")
        self.assertIn("no target answers", text)


@unittest.skipIf(FAKE, "the driver is the tests' own")
class OnAGpu(ServerTest):
    """To be run by hand, as OnAGpu of device_test."""

    def test_logits_of_torch_stay_on_the_device(self):
        import torch
        if not torch.cuda.is_available():
            self.skipTest("torch sees no GPU")
        client = self.connect()
        transfer = LogitsTransfer(client)
        sequences, expected = ([each.open(seed=seed, **OPTIONS) for seed in range(3)] for each in (client, SAMPLER))
        for _ in range(20):
            logits = torch.randn(3, VOCABULARY, device="cuda").to(torch.bfloat16)
            drawn = client.step(sequences, transfer.move(logits))
            self.assertEqual((transfer.path, transfer.note), ("device", ""))
            self.assertEqual([result.token for result in drawn],
                             [result.token for result in SAMPLER.step(expected, logits.cpu())])


if __name__ == "__main__":
    unittest.main(verbosity=2)  # prints why a test is skipped
