"""The comparison with peers: its cases are bench_cuda's, and its ratios what they say. No PyTorch is needed."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))
import peers  # pylint: disable=wrong-import-position


class Peers(unittest.TestCase):
    def test_ratio_is_how_many_times_as_long_the_peer_takes(self):
        ours = {"top_k_top_p_256_ties": 25.0}
        result = peers.result_of("flashinfer", "top_k_top_p_256_ties", 250.0, ours)
        self.assertEqual((result["baseline"], result["ratio"]), (25.0, 10.0))
        self.assertIn("10.00 x 25.0", peers.line_of(result))
        alone = peers.result_of("flashinfer", "top_k_top_p_1_peaked", 250.0, ours)
        self.assertEqual((alone["baseline"], alone["ratio"]), (None, None))
        self.assertNotIn(" x ", peers.line_of(alone))

    def test_reads_what_a_benchmark_wrote(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bench.json")
            with open(path, "w", encoding="utf-8") as file:
                file.write('{"suite": "cuda", "results": [{"name": "a_1", "value": 2.5, "unit": "us"}]}')
            self.assertEqual(peers.read_ours(path), {"a_1": 2.5})
        self.assertEqual(peers.read_ours(None), {})

    def test_every_case_has_one_of_ours(self):
        listed = subprocess.run([os.environ["BENCH_CUDA"], "--list"], check=True, capture_output=True, text=True)
        cases = set(listed.stdout.split())
        for is_f32, shapes in ((False, peers.SHAPES), (True, peers.F32_SHAPES)):
            for rows, _ in shapes:
                for kind in peers.kinds_of(is_f32, rows):
                    self.assertIn(peers.case_of(kind, is_f32, rows), cases)


if __name__ == "__main__":
    unittest.main()
