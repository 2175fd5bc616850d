"""The C interface through ctypes: the structs that its tests use, written out by hand as another language would."""

import ctypes
import os
from ctypes import (POINTER, Structure, byref, c_char_p, c_double, c_float, c_int32, c_size_t, c_uint32, c_uint64,
                    c_void_p)

VOCABULARY = 1000


class Error(Structure):
    _fields_ = [("struct_size", c_size_t), ("code", c_int32), ("reason", c_int32), ("reason_name", c_char_p),
                ("field", c_char_p), ("limit", c_char_p), ("message", c_char_p), ("retry_after_ns", c_uint64)]


class Refused(Exception):
    """An error of the library, copied."""

    def __init__(self, error):
        self.code, self.reason = error.code, error.reason_name.decode()
        self.field, self.limit, self.message = (text.decode() for text in (error.field, error.limit, error.message))
        super().__init__(f"{self.reason} {self.field} ({self.limit}): {self.message}")


class SequenceOptions(Structure):
    _fields_ = [("struct_size", c_size_t), ("request_id", c_char_p), ("parameters", c_void_p),
                ("vocabulary_size", c_uint32), ("live_vocabulary_size", c_uint32), ("prompt", POINTER(c_uint32)),
                ("prompt_count", c_size_t), ("seed", c_uint64), ("has_seed", c_uint32), ("choice_index", c_uint32),
                ("start_position", c_uint32), ("has_start_position", c_uint32), ("model", c_char_p),
                ("turns", c_uint32), ("reserved", c_uint32), ("receipts", c_void_p)]


class ClientOptions(Structure):
    """The fields that the tests set; the struct of an older header ends here."""

    _fields_ = [("struct_size", c_size_t), ("targets", POINTER(c_char_p)), ("target_count", c_size_t),
                ("transport", c_int32), ("fallback", c_int32)]


class NewerClientOptions(ClientOptions):
    """The fields after them, to the last one."""

    _fields_ = [("texts", c_char_p * 3), ("numbers", c_uint64 * 10), ("small_numbers", c_uint32 * 6),
                ("tls_texts", c_char_p * 4), ("shard", c_uint32 * 5), ("ignore_unknown_fields", c_uint32),
                ("rows", c_char_p)]


class Row(Structure):
    _fields_ = [("struct_size", c_size_t), ("sequence", c_void_p), ("logits", c_void_p), ("allowed_bits", c_void_p),
                ("drafts", c_void_p), ("scored", c_void_p), ("scored_count", c_size_t), ("draw_salt", c_uint32),
                ("reserved", c_uint32), ("banned_tokens", c_void_p), ("banned_count", c_size_t)]


class Batch(Structure):
    _fields_ = [("struct_size", c_size_t), ("rows", POINTER(Row)), ("row_count", c_size_t),
                ("vocabulary_size", c_uint32), ("dtype", c_int32), ("draft_dtype", c_int32), ("ready_value", c_uint32),
                ("ready_word", c_void_p)]


class Logprobs(Structure):
    _fields_ = [("struct_size", c_size_t), ("logprob", c_float), ("rank", c_uint32),
                ("top_tokens", POINTER(c_uint32)), ("top_logprobs", POINTER(c_float)), ("top_count", c_size_t)]


class Position(Structure):
    _fields_ = [("struct_size", c_size_t), ("token", c_uint32), ("entropy", c_float), ("has_entropy", c_uint32),
                ("kept_count", c_uint32), ("has_kept_count", c_uint32), ("phase", c_uint32),
                ("raw", POINTER(Logprobs)), ("processed", POINTER(Logprobs))]


class Result(Structure):
    _fields_ = [("struct_size", c_size_t), ("kind", c_int32), ("finish_reason", c_int32), ("error", POINTER(Error)),
                ("positions", POINTER(POINTER(Position))), ("position_count", c_size_t)]


class Results(Structure):
    _fields_ = [("struct_size", c_size_t), ("rows", POINTER(POINTER(Result))), ("row_count", c_size_t)]


library = ctypes.CDLL(os.environ["TEST_C_LIBRARY"])
library.sortition_version.restype = c_char_p
for _name in ("error_free", "results_free"):
    getattr(library, f"sortition_{_name}").restype = None


def call(name, *arguments):
    """Calls a function that takes an error last. Raises Refused."""
    error = POINTER(Error)()
    function = getattr(library, f"sortition_{name}")
    if function(*arguments, byref(error)) == 0:
        assert not error, "an error beside success"
        return
    refused = Refused(error.contents)
    library.sortition_error_free(error)
    raise refused


def sized(struct, **fields):
    return struct(struct_size=ctypes.sizeof(struct), **fields)


def tokens_of(tokens):
    return (c_uint32 * len(tokens))(*tokens)


class Parameters:
    """A handle, closed with the object."""

    def __init__(self):
        self.handle = c_void_p()
        call("parameters_new", byref(self.handle))

    def __del__(self):
        call("parameters_close", self.handle)

    def set_double(self, name, value):
        call("parameters_set_double", self.handle, name.encode(), c_double(value))

    def set_uint(self, name, value):
        call("parameters_set_uint", self.handle, name.encode(), c_uint64(value))

    def set_bool(self, name, value):
        call("parameters_set_bool", self.handle, name.encode(), c_int32(value))

    def set_text(self, name, value):
        call("parameters_set_text", self.handle, name.encode(), value.encode())

    def add_text(self, name, value):
        call("parameters_add_text", self.handle, name.encode(), value.encode())

    def set_tokens(self, name, tokens):
        call("parameters_set_tokens", self.handle, name.encode(), tokens_of(tokens), c_size_t(len(tokens)))

    def add_tokens(self, name, tokens):
        call("parameters_add_tokens", self.handle, name.encode(), tokens_of(tokens), c_size_t(len(tokens)))

    def set_biases(self, name, biases):
        values = (c_float * len(biases))(*biases.values())
        call("parameters_set_biases", self.handle, name.encode(), tokens_of(list(biases)), values,
             c_size_t(len(biases)))


class Client:
    """A client of one server, or without a target one in process."""

    def __init__(self, *targets, rows=None):
        texts = (c_char_p * len(targets))(*(target.encode() for target in targets))
        fields = {"targets": texts, "target_count": len(targets), "fallback": 0 if targets else 1}
        options = sized(NewerClientOptions, rows=rows.encode(), **fields) if rows else sized(ClientOptions, **fields)
        self.handle = c_void_p()
        call("client_connect", byref(options), byref(self.handle))

    def close(self):
        call("client_close", self.handle)


def open_sequence(parameters, client=None, prompt=(1, 2, 3, 2), **fields):
    """Opens a sequence in process, or with the client."""
    list_of_prompt = tokens_of(prompt)
    options = sized(SequenceOptions, request_id=b"request", parameters=parameters.handle if parameters else None,
                    vocabulary_size=VOCABULARY, prompt=list_of_prompt, prompt_count=len(prompt),
                    **{"seed": 42, "has_seed": 1, **fields})
    sequence = c_void_p()
    if client is None:
        call("local_open", byref(options), byref(sequence))
    else:
        call("client_open", client.handle, byref(options), byref(sequence))
    return sequence


def draw(sequence, logits, client=None):
    """Draws one token; it and the bits of its processed log probability."""
    row = sized(Row, sequence=sequence, logits=ctypes.cast(logits, c_void_p))
    batch = sized(Batch, rows=ctypes.pointer(row), row_count=1, vocabulary_size=VOCABULARY, dtype=1)
    results = POINTER(Results)()
    if client is None:
        call("local_step", byref(batch), byref(results))
    else:
        call("client_step", client.handle, byref(batch), None, byref(results))
    try:
        result = results.contents.rows[0].contents
        if result.error:
            raise Refused(result.error.contents)
        position = result.positions[0].contents
        bits = 0
        if position.processed:
            bits = c_uint32.from_buffer_copy(c_float(position.processed.contents.logprob)).value
        return position.token, bits
    finally:
        library.sortition_results_free(results)


def logits_of(seed):
    """The logits of fill_logits in testing.h."""
    state = (seed * 2654435761 + 1) & 0xffffffff
    values = (c_float * VOCABULARY)()
    for index in range(VOCABULARY):
        state = (state * 1664525 + 1013904223) & 0xffffffff
        values[index] = ((state >> 24) - 128) / 16
    return values
