"""The C interface's client from C, against a server over TCP, a Unix socket and a ring."""

import os
import unittest

from both import output_of, server


class ServiceTest(unittest.TestCase):
    def test_cases_of_the_c_program(self):
        with server() as addresses:
            print(output_of(os.environ["TEST_C_SERVICE"], *addresses, addresses.folder))
            self.assertEqual(addresses.compact_rows(), 8)
            self.assertIn("draw: 6 of 6 tokens", addresses.verified("c"))


if __name__ == "__main__":
    unittest.main()
