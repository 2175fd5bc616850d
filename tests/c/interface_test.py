"""The C interface through ctypes: every parameter of the contract can be set, and results are complete."""

import ctypes
import os
import pathlib
import re
import unittest

from both import server
from interface import (Batch, Client, NewerClientOptions, Parameters, Refused, Row, SequenceOptions, VOCABULARY, call,
                       draw, library, logits_of, open_sequence, sized)

CONTRACT = pathlib.Path(os.environ["TEST_SOURCE_DIR"], "proto/sortition/v1/parameters.proto").read_text()
FIELD = re.compile(r"^ +(?:optional |(repeated ))?([\w.]+) (\w+) = \d+;", re.MULTILINE)
SCALARS = {"float": "set_double", "uint32": "set_uint", "fixed64": "set_uint", "bool": "set_bool"}
LISTS = {"uint32": "set_tokens", "LogitBias": "set_biases", "TokenSequence": "add_tokens", "string": "add_text"}
ENUMS = {"NanPolicy": "NAN_POLICY_MASK", "Preset": "PRESET_HF"}
VALUES = {"set_double": 0.5, "set_uint": 1, "set_bool": 1, "set_tokens": [1, 2], "add_tokens": [3, 4],
          "set_biases": {5: 1.5}, "add_text": "top_k"}


def body_of(message):
    """The text of a message of the contract, without comments."""
    text = re.sub(r"//.*", "", CONTRACT)
    start = text.index(f"message {message} {{")
    depth = 0
    for end in range(text.index("{", start), len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    raise AssertionError(message)


def leaves(message, prefix=""):
    """Name, setter and value of every parameter below a message."""
    body = body_of(message)
    # Fields of a message that is declared within this one are its own.
    inner = {name: body_of(name) for name in re.findall(r"\bmessage (\w+) \{", body)[1:]}
    for text in inner.values():
        body = body.replace(text, "")
    for match in FIELD.finditer(body):
        repeated, kind, name = match.groups()
        path = prefix + name
        if kind == "Phase" and prefix:
            continue  # a phase has none within
        if repeated and kind not in LISTS:
            yield from leaves(kind, path + "[0].")
        elif repeated:
            yield path, LISTS[kind], VALUES[LISTS[kind]]
        elif kind in SCALARS:
            yield path, SCALARS[kind], VALUES[SCALARS[kind]]
        elif kind in ENUMS:
            yield path, "set_text", ENUMS[kind]
        else:
            yield from leaves(kind, path + ".")


class InterfaceTest(unittest.TestCase):
    def test_every_parameter_is_reachable(self):
        names = set()
        for name, setter, value in leaves("SamplingParameters"):
            parameters = Parameters()
            getattr(parameters, setter)(name, value)
            # Any other setter is refused, and the right one is named.
            for other in sorted(set(SCALARS.values()) | set(LISTS.values())):
                if other != setter:
                    with self.assertRaises(Refused) as raised:
                        getattr(parameters, other)(name, VALUES[other])
                    self.assertIn(f"sortition_parameters_{setter}", raised.exception.message)
                    self.assertEqual(raised.exception.field, name)
            call("parameters_clear", parameters.handle, name.encode())
            names.add(name.split(".")[0])
        self.assertGreaterEqual(len(names), 37)

    def test_set_parameters_change_the_draw(self):
        logits = logits_of(1)
        plain = draw(open_sequence(Parameters(), seed=1), logits)[0]
        parameters = Parameters()
        parameters.set_tokens("banned_token_ids", [plain])
        self.assertNotEqual(draw(open_sequence(parameters, seed=1), logits)[0], plain)
        parameters = Parameters()
        parameters.set_biases("logit_bias", {17: 500.0})
        self.assertEqual(draw(open_sequence(parameters, seed=1), logits)[0], 17)
        parameters = Parameters()
        parameters.set_uint("phases[0].max_tokens", 0)
        parameters.set_tokens("phases[0].then", [33])
        self.assertEqual(draw(open_sequence(parameters, seed=1), logits)[0], 33)
        parameters = Parameters()
        parameters.set_text("chain.preset", "PRESET_LLAMA_CPP")
        parameters.set_uint("top_k", 1)
        self.assertEqual(draw(open_sequence(parameters), logits)[0], max(range(VOCABULARY), key=logits.__getitem__))

    def test_lists_and_chains_are_honoured(self):
        parameters = Parameters()
        parameters.add_tokens("bad_words", [3, 4])
        parameters.add_tokens("bad_words", [5])
        parameters.set_double("dry.multiplier", 0.8)
        parameters.add_tokens("dry.sequence_breakers", [9])
        for sampler in ("temperature", "top_k"):
            parameters.add_text("chain.explicit.samplers", sampler)
        parameters.set_double("temperature", 0.8)
        parameters.set_uint("top_k", 5)
        draw(open_sequence(parameters), logits_of(2))
        parameters.set_double("top_p", 0.9)  # is on, but has no place in the chain
        with self.assertRaises(Refused) as raised:
            open_sequence(parameters)
        self.assertTrue(raised.exception.field.startswith("open.parameters."), raised.exception)

    def test_refusal_names_field_and_limit(self):
        parameters = Parameters()
        parameters.set_double("mirostat.tau", 99)
        parameters.set_uint("mirostat.version", 2)
        with self.assertRaises(Refused) as raised:
            open_sequence(parameters)
        self.assertEqual((raised.exception.field, raised.exception.reason),
                         ("open.parameters.mirostat.tau", "OUT_OF_RANGE"))
        self.assertTrue(raised.exception.limit)

    def test_closed_sequence_is_refused(self):
        sequence = open_sequence(None)
        call("sequence_close", sequence)
        for _ in range(2):
            with self.assertRaises(Refused) as raised:
                draw(sequence, logits_of(1))
            self.assertEqual(raised.exception.field, "batch.rows[0].sequence")

    def test_rows_are_compact_where_that_is_asked(self):
        parameters = Parameters()
        parameters.set_uint("top_k", 50)
        parameters.set_uint("processed_logprobs.top", 1)
        with server() as addresses:
            for rows, compact in (("full", 0), ("compact(60)", 5)):
                client = Client(addresses[0], rows=rows)
                there, here = open_sequence(parameters, client), open_sequence(parameters)
                for seed in range(5):
                    logits = logits_of(seed)
                    self.assertEqual(draw(there, logits, client), draw(here, logits))
                call("sequence_close", there)
                client.close()
                self.assertEqual(addresses.compact_rows(), compact)
        with self.assertRaises(Refused) as raised:
            Client(rows="Full")
        self.assertEqual(raised.exception.field, "options.rows")

    def test_structs_are_as_long_as_the_headers(self):
        # A struct one word longer is refused, so these have all fields of this library's.
        for struct, name, function in ((SequenceOptions, "options", "local_open"), (Batch, "batch", "local_step"),
                                       (NewerClientOptions, "options", "client_connect")):
            made = struct(struct_size=ctypes.sizeof(struct) + 8)
            with self.assertRaises(Refused) as raised:
                call(function, ctypes.byref(made), ctypes.byref(ctypes.c_void_p()))
            self.assertEqual(raised.exception.field, f"{name}.struct_size")
            self.assertIn(f"..{ctypes.sizeof(struct)},", raised.exception.limit)
        rows = (Row * 1)(Row(struct_size=ctypes.sizeof(Row) + 8))
        batch = sized(Batch, rows=rows, row_count=1, vocabulary_size=VOCABULARY, dtype=1)
        with self.assertRaises(Refused) as raised:
            call("local_step", ctypes.byref(batch), ctypes.byref(ctypes.c_void_p()))
        self.assertIn(f"..{ctypes.sizeof(Row)},", raised.exception.limit)

    def test_version_is_the_trees(self):
        root = pathlib.Path(os.environ["TEST_SOURCE_DIR"], "CMakeLists.txt").read_text()
        self.assertIn(f"VERSION {library.sortition_version().decode()} ", root)


if __name__ == "__main__":
    unittest.main()
