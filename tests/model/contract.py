"""The contract as Python messages, and its options: what a table of pairs has to meet.

An option is a field of an open, a step or a policy, named by its path. Options are derived from the descriptors, so a
field that is added to the contract is an option from then on. OUT_OF_SCOPE and CONSTANT name the fields that are none.
"""

import itertools

from sortition.v1 import errors_pb2, parameters_pb2, policies_pb2, sampling_pb2

Reason = errors_pb2.ErrorReason
OpenSequence, SamplingParameters = sampling_pb2.OpenSequence, parameters_pb2.SamplingParameters
Step, StepRow, StepResults, RowResult = (sampling_pb2.Step, sampling_pb2.StepRow, sampling_pb2.StepResults,
                                         sampling_pb2.RowResult)
StreamRequest, StreamResponse = sampling_pb2.StreamRequest, sampling_pb2.StreamResponse
Policy, PolicyEffect = policies_pb2.Policy, sampling_pb2.PolicyEffect

# Parts of the contract that other suites test, with the folder of the suite.
OUT_OF_SCOPE = {
    "open.receipts": "tests/verifier", "policy.receipts": "tests/e2e", "step.logits.shard": "tests/python",
    "step.logits.ready": "tests/python", "step.trace": "tests/traces",
    # Memory that worker and server share.
    **{f"{tensor}.source.region": "tests/e2e" for tensor in (
        "step.logits", "step.masks", "step.draft_probabilities", "upload.mask")},
    "step.logits.pairs.region": "tests/e2e",
}
# Fields that every message of their kind has, so no worlds are without them.
CONSTANT = {
    "open.request_id", "open.epoch", "open.law_version", "open.parameters", "open.vocabulary_size", "step.batch_id",
    "step.logits", "step.logits.vocabulary_size", "step.rows", "step.rows.request_id", "step.rows.step_id",
    "step.rows.position", "policy.tenant", "policy.watermark.keys", "policy.limits.field", "step.logits.source",
}
ROOTS = {"open": OpenSequence.DESCRIPTOR, "step": Step.DESCRIPTOR, "policy": policies_pb2.Policy.DESCRIPTOR}
# The defaults of a policy are parameters, which are options already.
FLAT = {"policy.defaults"}


def described(path, field):
    """The options of a field and of the fields within it: (path, the oneof or the enumeration that it excludes)."""
    if path in OUT_OF_SCOPE:
        return
    group = field.containing_oneof
    group = f"{path.rpartition('.')[0]}:{group.name}" if group is not None and len(group.fields) > 1 else None
    if field.enum_type is not None:
        for value in field.enum_type.values:
            if value.number:
                yield f"{path}={value.name}", f"{path}:enum"
        return
    if path not in CONSTANT:
        yield path, group
    if field.message_type is not None and path not in FLAT:
        for inner in field.message_type.fields:
            yield from described(f"{path}.{inner.name}", inner)


def all_options():
    """Every option, with the names of the groups of which it excludes the other members."""
    found = {}
    for root, descriptor in ROOTS.items():
        for field in descriptor.fields:
            for path, group in described(f"{root}.{field.name}", field):
                found[path] = group
    return found


GROUPS = all_options()
OPTIONS = sorted(GROUPS)
INDEX = {name: number for number, name in enumerate(OPTIONS)}


def members(name):
    """The oneof members that stand on an option's way: (group, member)."""
    parts = name.split(".")
    for count in range(2, len(parts) + 1):
        path = ".".join(parts[:count])
        group = GROUPS.get(path)
        if group is not None:
            yield group, path


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
