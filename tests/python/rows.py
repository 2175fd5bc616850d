"""Rows, options and a server that the tests of the package share."""

import os

import numpy

from sortitiond_process import Sortitiond, binary

VOCABULARY = 1000


def row(seed, width=VOCABULARY):
    """Logits with a few high ones and many ties."""
    generator = numpy.random.default_rng(seed)
    return numpy.round(generator.standard_t(3, width) * 2, 1).astype(numpy.float32)


# One set of options a kind of row: without state, with penalties, with everything.
OPTIONS = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "processed_logprobs": {"top": 3}},
    {"temperature": 1.3, "repetition_penalty": 1.2, "raw_logprobs": {"top": 2}, "processed_logprobs": {}},
    {"frequency_penalty": 0.7, "presence_penalty": 0.3, "top_p": 0.8, "logit_bias": [{"token": 5, "bias": 4.0}],
     "banned_token_ids": [7, 8], "raw_logprobs": {}},
    {"allowed_token_ids": list(range(0, VOCABULARY - 10, 3)), "repetition_penalty": 0.8},
)


def serve(*arguments, listen="127.0.0.1:0"):
    return Sortitiond(binary(), f"--listen={listen}", "--metrics_listen=127.0.0.1:0", *arguments)


def scale(count):
    return max(1, int(count * float(os.environ.get("TEST_SCALE", "1"))))
