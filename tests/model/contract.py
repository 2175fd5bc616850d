"""The contract as Python messages, and its options, whose pairs a table has to meet.

An option is a field of a message of the worker or of a policy, named by its path. Options are derived from the
descriptors, so a field that is added to the contract is an option at once. OUT_OF_SCOPE and CONSTANT name the
fields that are none.
"""

import itertools

from sortition.v1 import errors_pb2, policies_pb2, sampling_pb2
from sortition_verify.option_table import IN_PHASES

Reason = errors_pb2.ErrorReason
OpenSequence, History, Step = sampling_pb2.OpenSequence, sampling_pb2.History, sampling_pb2.Step
RowResult = sampling_pb2.RowResult
StreamRequest, StreamResponse = sampling_pb2.StreamRequest, sampling_pb2.StreamResponse
SampleRequest, SampleResponse = sampling_pb2.SampleRequest, sampling_pb2.SampleResponse
Policy, PolicyEffect = policies_pb2.Policy, sampling_pb2.PolicyEffect

# Parts of the contract that other suites test, with the folder of the suite.
OUT_OF_SCOPE = {
    "open.receipts": "tests/verifier", "policy.receipts": "tests/e2e", "policy.max_priority": "tests/policy",
    "step.logits.shard": "tests/python",
    "step.logits.ready": "tests/python", "step.trace": "tests/traces",
    # Memory that worker and server share.
    **{f"{tensor}.source.region": "tests/e2e" for tensor in (
        "step.logits", "step.masks", "step.draft_probabilities", "upload_mask.mask")},
    "step.logits.pairs.region": "tests/e2e", "close.shard_index": "tests/python",
}
# Fields that every message of their kind has, so no worlds are without them.
CONSTANT = {
    "open.request_id", "open.epoch", "open.law_version", "open.parameters", "open.vocabulary_size", "step.batch_id",
    "step.logits", "step.logits.vocabulary_size", "step.rows", "step.rows.request_id", "step.rows.step_id",
    "step.rows.position", "policy.tenant", "policy.watermark.keys", "policy.limits.field", "step.logits.source",
    "fork.parent_request_id", "fork.child", "close.request_id", "cancel.batch_id", "upload_mask.vocabulary_size",
    "upload_mask.mask_id", "sample.logits", "sample.vocabulary_size", "sample.rows", "sample.rows.parameters",
    "upload_mask.mask.source.inline.payload",
}
# Messages of a stream that name a sequence: the message and its fields meet the options of the sequence.
KINDS = {field.name: field.message_type for field in StreamRequest.DESCRIPTOR.oneofs_by_name["kind"].fields
         if field.name not in ("hello", "open", "attach_memory", "bring_answer")}
# A call has the options of the sequence whose parameters its rows take.
KINDS["sample"] = sampling_pb2.SampleRequest.DESCRIPTOR
ROOTS = {**KINDS, "open": OpenSequence.DESCRIPTOR, "policy": policies_pb2.Policy.DESCRIPTOR}
# Fields with options that are options elsewhere, too.
FLAT = {"policy.defaults", "fork.child", "sample.rows.parameters"}


def fields_within(field):
    """The fields of a message; of a phase's parameters those that it may replace."""
    in_phase = field.full_name == "sortition.v1.Phase.parameters"
    return [inner for inner in field.message_type.fields if not in_phase or inner.name in IN_PHASES]


def described(path, field):
    """The options of a field and of the fields within it."""
    if path in OUT_OF_SCOPE:
        return
    if field.enum_type is not None:
        yield from (f"{path}={value.name}" for value in field.enum_type.values if value.number)
        return
    if path not in CONSTANT:
        yield path
    if field.message_type is not None and path not in FLAT:
        for inner in fields_within(field):
            yield from described(f"{path}.{inner.name}", inner)


def alternatives(path, field):
    """The fields here and within that exclude others: (path, the name of their oneof)."""
    group = field.containing_oneof
    if group is not None and len(group.fields) > 1:
        yield path, f"{path.rpartition('.')[0]}:{group.name}"
    if field.message_type is not None and path not in FLAT and path not in OUT_OF_SCOPE:
        for inner in fields_within(field):
            yield from alternatives(f"{path}.{inner.name}", inner)


FIELDS = [(f"{root}.{field.name}", field) for root, descriptor in ROOTS.items() for field in descriptor.fields]
OPTIONS = sorted([*(kind for kind in KINDS if kind not in ("step", "upload_mask")),
                  *(option for path, field in FIELDS for option in described(path, field))])
INDEX = {name: number for number, name in enumerate(OPTIONS)}
GROUPS = {path: group for start, field in FIELDS for path, group in alternatives(start, field)}


def members(name):
    """The choices that an option makes: of oneofs on its way, and of an enumeration."""
    path, _, value = name.partition("=")
    if value:
        yield path, value
    parts = path.split(".")
    for count in range(2, len(parts) + 1):
        part = ".".join(parts[:count])
        if part in GROUPS:
            yield GROUPS[part], part
    if parts[0] in KINDS:
        yield "message", "step" if parts[0] == "upload_mask" else parts[0]  # a mask meets the rows that name it


MEMBERS = {name: dict(members(name)) for name in OPTIONS}


def can_meet(first, second):
    """False where the two are members of one oneof or values of one enumeration, of the same message."""
    ours, theirs = MEMBERS[first], MEMBERS[second]
    return all(theirs.get(group, path) == path for group, path in ours.items())


PAIRS = [(INDEX[a], INDEX[b]) for a, b in itertools.combinations(OPTIONS, 2) if can_meet(a, b)]


def options_in(message, path):
    """The options that a message sets."""
    for field, value in message.ListFields():
        name = f"{path}.{field.name}"
        if name in OUT_OF_SCOPE:
            continue
        if field.enum_type is not None:
            values = value if field.is_repeated else [value]
            for number in values:
                if number:
                    yield f"{name}={field.enum_type.values_by_number[number].name}"
            continue
        if name in INDEX:
            yield name
        if field.message_type is not None and name not in FLAT:
            for inner in value if field.is_repeated else [value]:
                yield from options_in(inner, name)


def numbers_of(message, path):
    return {INDEX[name] for name in options_in(message, path)}
