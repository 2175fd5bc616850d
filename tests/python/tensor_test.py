"""Accepted tensors, and the errors for all others, before anything is done."""

import unittest

import numpy
import sortition
import sortition.local

from rows import OnCuda, VOCABULARY, row

SAMPLER = sortition.local.Sampler()
CLIENT = sortition.Client(fallback="in_process", in_process_threads=1)


def draw(logits, **options):
    return SAMPLER.draw(SAMPLER.open(vocabulary_size=VOCABULARY, seed=1, processed_logprobs={}), logits, **options)


class ThroughDLPack:
    """An array with DLPack and no other interface."""

    def __init__(self, array):
        self._array = array

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()

    def __dlpack__(self, **_):
        return self._array.__dlpack__()


class Taken(unittest.TestCase):
    def test_every_way_to_the_same_row_gives_the_same_bits(self):
        logits = row(1)
        expected = draw(logits)
        apart = numpy.zeros((3, VOCABULARY + 5), numpy.float32)
        apart[1, 2:-3] = logits
        unaligned = numpy.frombuffer(b"x" + logits.tobytes(), numpy.uint8)[1:].view(numpy.float32)
        frozen = logits.copy()
        frozen.flags.writeable = False
        for name, same in (("matrix", logits[None, :]), ("list", [logits]), ("strided", apart[1:2, 2:-3]),
                           ("vector within", apart[1, 2:-3]), ("read-only", frozen), ("memoryview", memoryview(logits)),
                           ("unaligned", unaligned), ("DLPack", ThroughDLPack(logits)),
                           ("words", (logits.view(numpy.uint32), "float32"))):
            with self.subTest(name):
                same, dtype = same if isinstance(same, tuple) else (same, None)
                self.assertEqual(draw(same, dtype=dtype), expected)

    def test_half_types(self):
        rounded = row(2).astype(numpy.float16)
        self.assertEqual(draw(rounded), draw(rounded.astype(numpy.float32)))
        self.assertEqual(draw(rounded.view(numpy.uint16), dtype="float16"), draw(rounded))
        words = (row(3).view(numpy.uint32) >> 16).astype(numpy.uint16)
        widened = (words.astype(numpy.uint32) << 16).view(numpy.float32)
        self.assertEqual(draw(words, dtype="bfloat16"), draw(widened))

    def test_separate_rows_are_sent_without_copy(self):
        logits = numpy.stack([row(i, VOCABULARY + 24) for i in range(6)])
        sequences = [CLIENT.open(vocabulary_size=VOCABULARY, seed=i) for i in range(3)]
        drawn = CLIENT.step(sequences, logits[::2, 24:])
        expected = [SAMPLER.draw(SAMPLER.open(vocabulary_size=VOCABULARY, seed=i), logits[2 * i, 24:])
                    for i in range(3)]
        self.assertEqual([result.token for result in drawn], [result.token for result in expected])


class Refused(unittest.TestCase):
    def test_errors_name_the_fault(self):
        logits = row(4)
        sequence = CLIENT.open(vocabulary_size=VOCABULARY)
        local = SAMPLER.open(vocabulary_size=VOCABULARY)
        cases = (
            (logits.astype(numpy.float64), TypeError, "dtype float64"),
            (logits.astype(numpy.int32), TypeError, "dtype int32"),
            (logits.view(numpy.uint32), TypeError, "dtype uint32"),
            (logits.astype(numpy.float16).view(numpy.uint16), TypeError, "dtype uint16"),
            (logits[::2], ValueError, "contiguous"),
            (numpy.zeros((1, VOCABULARY, 2), numpy.float32)[:, :, 0], ValueError, "contiguous"),
            (logits[:-1], ValueError, "the vocabulary"),
            (numpy.stack([logits, logits]), ValueError, r"shape \(2, 1000\) for 1 sequences"),
            (logits[None, None, :], ValueError, "shape"),
            (numpy.float32(1), ValueError, "shape"),
            (numpy.zeros(0, numpy.float32), ValueError, "rows of 0"),
            ([], ValueError, "0 rows for 1"),
            ("logits", TypeError, "str"),
            (None, TypeError, "NoneType"),
            (list(map(float, logits)), ValueError, "1000 rows for 1"),
        )
        for bad, kind, text in cases:
            with self.subTest(f"{type(bad).__name__} {text}"):
                with self.assertRaisesRegex(kind, text):
                    CLIENT.draw(sequence, bad)
                with self.assertRaisesRegex(kind, text):
                    SAMPLER.draw(local, bad)
                with self.assertRaisesRegex(kind, text):
                    SAMPLER.step([local], bad)
        self.assertEqual((sequence.position, local.position), (0, 0))

    def test_rows_on_a_cuda_device(self):
        there = OnCuda(row(4))
        with self.assertRaisesRegex(TypeError, "another device"):
            CLIENT.draw(CLIENT.open(vocabulary_size=VOCABULARY), there)
        local = SAMPLER.open(vocabulary_size=VOCABULARY)
        for step in (lambda: SAMPLER.draw(local, there), lambda: SAMPLER.step([local], [there], stream=7)):
            # The device is not there. A machine with a GPU says so, others name the part that they lack.
            with self.assertRaises(sortition.Error) as raised:
                step()
            self.assertIn(raised.exception.code, ("NOT_FOUND", "FAILED_PRECONDITION", "INVALID_ARGUMENT"))
            self.assertIn("CUDA", str(raised.exception))
        with self.assertRaisesRegex(TypeError, "different devices"):
            SAMPLER.step([local, SAMPLER.open(vocabulary_size=VOCABULARY)], [row(1), there])
        with self.assertRaisesRegex(ValueError, "twice"):
            SAMPLER.step([local, local], [there, there])
        self.assertEqual(local.position, 0)

    def test_types_in_words(self):
        with self.assertRaisesRegex(TypeError, "does not hold float16"):
            draw(row(1), dtype="float16")
        with self.assertRaisesRegex(ValueError, "not float32"):
            draw(row(1), dtype="float8")

    def test_masks(self):
        allowed = numpy.zeros(VOCABULARY, bool)
        allowed[[3, 500, 999]] = True
        self.assertIn(draw(row(5), allowed=allowed).token, (3, 500, 999))
        self.assertEqual(draw(row(5), allowed=sortition.pack_mask(allowed)), draw(row(5), allowed=allowed))
        for bad, kind, text in ((sortition.pack_mask(allowed[:-40]), ValueError, "30 words; 1000 tokens take 32"),
                                (numpy.zeros(32, numpy.int64), TypeError, "uint32"),
                                ([True] * VOCABULARY, TypeError, "allowed: list")):
            with self.assertRaisesRegex(kind, text):
                draw(row(5), allowed=bad)

    def test_a_mask_has_a_boolean_for_each_token(self):
        for size in (0, VOCABULARY - 40, VOCABULARY - 1, VOCABULARY + 1):
            with self.subTest(size), self.assertRaisesRegex(ValueError, f"allowed.0.: a mask of {size} booleans"):
                draw(row(5), allowed=numpy.ones(size, bool))


if __name__ == "__main__":
    unittest.main()
