"""Mistakes in opens and steps that the contract says are refused."""

import numpy as np
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor

from contract import OpenSequence
from sequence import Refused
from sortition_verify.option_table import NESTED, RANGES

PATHS = {option: f"{message}.{part}" for message, parts in NESTED.items() for part, option in parts.items()}


def beyond(path, form, low, high):
    """Values out of a number's range."""
    message, (*outer, name) = OpenSequence.DESCRIPTOR, f"parameters.{path}".split(".")
    for part in outer:
        message = message.fields_by_name[part].message_type
    if message.fields_by_name[name].type != FieldDescriptor.TYPE_FLOAT:
        return [value for value in (low - 1, high + 1) if value >= 0]
    return [low / 2 if low > 0 else low - 0.5, high * 1.01, "NaN"] + [low] * (form == "AboveLow")


BEYOND = {
    **{path: beyond(path, *ends) for path, ends in ((PATHS.get(name, name), ends) for name, ends in RANGES.items())},
    "raw_logprobs.top": (1001,),
    "stop_token_ids": ([1 << 20],), "banned_token_ids": ([1 << 20],),
    "allowed_token_ids": ([1 << 20],), "logprob_token_ids": ([1 << 20],),
    "logit_bias": ([{"token": 0, "bias": 65504}], [{"token": 1 << 20, "bias": 1}], [{"token": 0, "bias": "NaN"}]),
}
del BEYOND["watermark.context_width"]  # a watermark may be refused for a policy's
TWICE = {"stop_token_ids": [0, 0], "banned_token_ids": [0, 0], "allowed_token_ids": [0, 0], "logprob_token_ids": [0, 0],
         "bad_words": [{"tokens": [0]}, {"tokens": [0]}], "banned_phrases": [{"tokens": [0]}, {"tokens": [0]}],
         "logit_bias": [{"token": 0, "bias": 1}, {"token": 0, "bias": 2}]}
OPENS = ([("OUT_OF_RANGE", f"parameters.{path}", value) for path, values in BEYOND.items() for value in values]
         + [("CONTRADICTION", f"parameters.{path}", value) for path, value in TWICE.items()]
         + [("OUT_OF_RANGE", "choice_index", 65536), ("UNSUPPORTED_LAW_VERSION", "law_version", 99),
            ("OUT_OF_RANGE", "live_vocabulary_size", 0), ("OUT_OF_RANGE", "live_vocabulary_size", 1 << 20),
            ("OUT_OF_RANGE", "vocabulary_size", 1 << 20)])
STEPS = ("salt", "step_id", "no_hash", "hash", "cut", "append", "checkpoint", "token", "mask_row", "unknown_mask",
         "masks", "dense", "sampling", "no_sampling", "mode", "two_forms", "sum", "tensor_row")


def spoil_open(spoil, opened):
    """Puts the mistake into an open; returns the refusal."""
    reason, path, value = spoil
    made = value
    for name in reversed(path.split(".")):
        made = {name: made}
    for name in ("logit_bias", *TWICE):
        if path == f"parameters.{name}":
            opened.parameters.ClearField(name)
    opened.MergeFrom(json_format.ParseDict(made, OpenSequence()))
    return Refused(reason, *(f"open.{path}{end}" for end in ("", ".token", ".bias", ".tokens")))


def spoil(name, live, message, text, row, ask):
    """Puts the mistake into a row, where it is one; returns the refusal or None."""
    stateful, task = text.options.stateful, ask["task"]
    verify = {"verify": row.verify_draft, "tree": row.verify_tree}.get(task) if task in ("verify", "tree") else None
    field = {"verify": "verify_draft", "tree": "verify_tree"}.get(task)
    if name == "salt":
        row.draw_salt = 65536
        return Refused("OUT_OF_RANGE", "draw_salt")
    if name == "step_id":
        row.step_id = 0
        return Refused("MISSING_FIELD", "step_id")
    if name == "no_hash" and stateful:
        row.ClearField("history_hash")
        return Refused("MISSING_FIELD", "history_hash")
    if name == "hash" and not stateful:
        row.history_hash = 1
        return Refused("CONTRADICTION", "history_hash")
    if name == "cut" and not stateful:
        row.truncate_to = 0
        return Refused("CONTRADICTION", "truncate_to")
    if name == "append" and not stateful:
        row.append_tokens.append(0)
        return Refused("CONTRADICTION", "append_tokens")
    if name == "checkpoint" and not text.options.keeps_state:
        row.checkpoint = b"none"
        return Refused("CONTRADICTION", "checkpoint")
    if name == "token" and (verify is not None or task == "score"):
        (row.score.tokens if verify is None else verify.draft_tokens)[0] = live
        return Refused("OUT_OF_RANGE", "score.tokens" if verify is None else f"{field}.draft_tokens")
    if name == "mask_row" and message.masks and not (verify is not None and verify.masks):
        row.mask.mask_row = 1000
        return Refused("OUT_OF_RANGE", "mask.mask_row")
    if name == "unknown_mask" and not row.mask.HasField("mask_row") and not (verify is not None and verify.masks):
        row.mask.uploaded_mask_id = 1 << 40
        return Refused("UNKNOWN_MASK", "mask.uploaded_mask_id")
    if name == "masks" and verify is not None and verify.masks:
        row.mask.banned_tokens.append(0)
        return Refused("CONTRADICTION", f"{field}.masks", "mask")
    if name == "sampling" and task == "tree" and not ask["drafted"]:
        verify.draft_sampling = 1
        return Refused("CONTRADICTION", f"{field}.draft_sampling")
    if name == "no_sampling" and task == "tree" and ask["drafted"]:
        verify.ClearField("draft_sampling")
        return Refused("MISSING_FIELD", f"{field}.draft_sampling")
    if name == "mode" and verify is not None:
        verify.ClearField("mode")
        return Refused("MISSING_FIELD", f"{field}.mode")
    if name == "two_forms" and verify is not None and verify.sparse_probabilities:
        verify.draft_row = len(message.drafts)
        message.drafts.append(np.zeros(message.world["vocabulary"], np.float32 if message.draft_dtype == "f32"
                                       else np.uint16))
        return Refused("CONTRADICTION", f"{field}.sparse_probabilities", f"{field}.draft_row")
    if name == "sum" and verify is not None and verify.sparse_probabilities:
        verify.sparse_probabilities[0].probabilities[0] = 1.5
        return Refused("OUT_OF_RANGE", f"{field}.sparse_probabilities", f"{field}.sparse_probabilities.probabilities")
    if name == "dense" and verify is not None and verify.HasField("draft_row") and not ask["compact"]:
        # The model decides the refusal, because failing logits come first.
        message.drafts[verify.draft_row] = np.zeros_like(message.drafts[verify.draft_row])
        ask["drafted"][min(ask["drafted"])].fails = True
    if name == "tensor_row" and row.compact:
        row.tensor_row = 0
        return Refused("CONTRADICTION", "tensor_row")
    return None
