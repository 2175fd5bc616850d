"""A C, a Python and a Rust program draw the same tokens and bits, in process and by the service.

The Rust program's path is in TEST_RUST_SAME, where tests/rust has built it.
"""

import os
import unittest

from both import output_of, server
from interface import Client, Parameters, draw, logits_of, open_sequence


def text_in_python(target=None):
    """The lines that the other programs print."""
    parameters = Parameters()
    parameters.set_double("temperature", 0.9)
    parameters.set_uint("top_k", 50)
    parameters.set_double("repetition_penalty", 1.2)
    parameters.set_uint("processed_logprobs.top", 3)
    client = Client(target) if target else None
    sequence = open_sequence(parameters, client)
    lines = ["%u %08x" % draw(sequence, logits_of(seed), client) for seed in range(40)]
    if client:
        client.close()
    return lines


class SameTest(unittest.TestCase):
    def test_programs_draw_the_same_text(self):
        programs = [os.environ["TEST_C_SAME"]]
        if "TEST_RUST_SAME" in os.environ:
            programs.append(os.environ["TEST_RUST_SAME"])
        expected = text_in_python()
        self.assertEqual(len(expected), 40)
        self.assertGreater(len(set(expected)), 20)
        for program in programs:
            self.assertEqual(output_of(program).splitlines(), expected, program)
        with server() as (tcp, _, _):
            self.assertEqual(text_in_python(tcp), expected)
            for program in programs:
                self.assertEqual(output_of(program, tcp).splitlines(), expected, program)


if __name__ == "__main__":
    unittest.main()
