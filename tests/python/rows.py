"""Rows, options and a server for the tests of the package."""

import ctypes
import os

import numpy

from sortitiond_process import Sortitiond, binary

VOCABULARY = 1000


def row(seed, width=VOCABULARY):
    """Makes logits with a few high ones and many ties."""
    generator = numpy.random.default_rng(seed)
    return numpy.round(generator.standard_t(3, width) * 2, 1).astype(numpy.float32)


# Options for each kind of row: without state, with penalties, with everything.
OPTIONS = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "processed_logprobs": {"top": 3}},
    {"temperature": 1.3, "repetition_penalty": 1.2, "raw_logprobs": {"top": 2}, "processed_logprobs": {}},
    {"frequency_penalty": 0.7, "presence_penalty": 0.3, "top_p": 0.8, "logit_bias": [{"token": 5, "bias": 4.0}],
     "banned_token_ids": [7, 8], "raw_logprobs": {}},
    {"allowed_token_ids": list(range(0, VOCABULARY - 10, 3)), "repetition_penalty": 0.8},
    {"no_repeat_ngram_size": 2, "bad_words": [{"tokens": [3, 4]}], "dry": {"multiplier": 0.8, "base": 1.75}},
    {"stop_token_ids": [0, 7], "min_tokens": 5, "entropy": True, "kept_set": {"count": True, "tokens": True},
     "top_k": 20, "logprob_token_ids": [1, 2], "raw_logprobs": {}},
    {"phases": [{"max_tokens": 2, "then": [11, 12]}], "presence_penalty": 0.5,
     "penalty_scope": {"window": 8, "frequency_counts_prompt": True}},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.03, "chain": {"preset": "PRESET_LLAMA_CPP"}},
    {"typical_p": 0.8, "top_n_sigma": 1.5, "chain": {"preset": "PRESET_HF"}},
    {"mirostat": {"version": 2, "tau": 4.0, "eta": 0.2}},
    {"top_k": 3, "repetition_stop": {"repeats": 2, "min_length": 2}, "banned_phrases": [{"tokens": [3]}]},
    {"temperature": 0.8, "top_p": 0.9, "frequency_penalty": 0.4, "tempered_logprobs": {"top": 3},
     "kept_log_mass": True},
)


def serve(*arguments, listen="127.0.0.1:0", environment=None):
    return Sortitiond(binary(), f"--listen={listen}", "--metrics_listen=127.0.0.1:0", *arguments,
                      environment=environment)


def scale(count):
    return max(1, int(count * float(os.environ.get("TEST_SCALE", "1"))))


class OnCuda:
    """A numpy array whose DLPack says that it is on a CUDA device."""

    def __init__(self, array):
        self._array = array

    def __dlpack_device__(self):
        return (2, 0)

    def __dlpack__(self, **_):
        capsule = self._array.__dlpack__()
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype = ctypes.c_void_p
        get_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
        tensor = get_pointer(capsule, b"dltensor")
        ctypes.c_int32.from_address(tensor + ctypes.sizeof(ctypes.c_void_p)).value = 2
        return capsule
