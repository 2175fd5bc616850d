"""Code that tests of the in-process sampler and of the service share."""

import unittest

import sortition
import sortition.local

from rows import VOCABULARY, serve


class BothTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = serve()
        cls.client = sortition.Client(cls.server.serving["listen"])
        cls.sampler = sortition.local.Sampler()

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.__exit__()

    def both(self, **options):
        return (self.client.open(vocabulary_size=VOCABULARY, **options),
                self.sampler.open(vocabulary_size=VOCABULARY, **options))
