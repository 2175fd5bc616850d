#!/usr/bin/env python3
"""Compares the contract with those that were released: a change that breaks a released client or server is a finding.

`contract.py` compiles proto/sortition/v1 with protoc and compares it with each proto/released/*.binpb, a compiled
FileDescriptorSet named after its release. It prints one line a finding and exits with 1 if there is any.

Additions are free: messages, fields, values of enumerations, methods. Everything that a release has must stay as it
is: names, numbers, types, `optional`, `repeated`, the oneof of a field, the streams of a method. The one exception is
an element that the release marks `deprecated`. It may go if its name and number are reserved.
"""

import glob
import os
import subprocess
import sys
import tempfile
from typing import Dict, Iterator, NamedTuple, Optional

from google.protobuf import descriptor_pb2 as pb

RELEASED = "proto/released"
SOURCES = "proto"

TYPE = pb.FieldDescriptorProto.Type
LABEL = pb.FieldDescriptorProto.Label


class Field(NamedTuple):
    """The part of a field that a peer can see."""

    name: str
    type: str
    label: str
    oneof: str


class Contract(NamedTuple):
    messages: Dict[str, pb.DescriptorProto]
    enums: Dict[str, pb.EnumDescriptorProto]
    methods: Dict[str, pb.MethodDescriptorProto]


def contract_of(files: pb.FileDescriptorSet) -> Contract:
    """Returns the definitions of the project's own packages by full name."""
    contract = Contract({}, {}, {})

    def add(prefix: str, messages, enums) -> None:
        for enum in enums:
            contract.enums[prefix + enum.name] = enum
        for message in messages:
            contract.messages[prefix + message.name] = message
            add(prefix + message.name + ".", message.nested_type, message.enum_type)

    for file in files.file:
        if not file.package.startswith("sortition."):
            continue
        add(file.package + ".", file.message_type, file.enum_type)
        for service in file.service:
            for method in service.method:
                contract.methods[f"{file.package}.{service.name}.{method.name}"] = method
    return contract


def field_of(message: pb.DescriptorProto, field: pb.FieldDescriptorProto) -> Field:
    label = "optional" if field.proto3_optional else LABEL.Name(field.label)[len("LABEL_") :].lower()
    if label == "optional" and not field.proto3_optional:
        label = "singular"
    in_oneof = field.HasField("oneof_index") and not field.proto3_optional
    oneof = message.oneof_decl[field.oneof_index].name if in_oneof else ""
    return Field(field.name, field.type_name or TYPE.Name(field.type)[len("TYPE_") :].lower(), label, oneof)


def is_reserved(ranges, names, number: int, name: str, ends_inclusive: bool) -> bool:
    """A message's reserved ranges exclude their end; an enumeration's include it."""
    return name in names and any(r.start <= number <= r.end - (0 if ends_inclusive else 1) for r in ranges)


def message_breaks(name: str, old: pb.DescriptorProto, new: pb.DescriptorProto) -> Iterator[str]:
    fields = {field.number: field for field in new.field}
    for field in old.field:
        here = f"{name}.{field.name} = {field.number}"
        if field.number not in fields:
            if not field.options.deprecated:
                yield f"{here}: removed, and the release does not mark it deprecated"
            elif not is_reserved(new.reserved_range, new.reserved_name, field.number, field.name, False):
                yield f"{here}: removed, but its name and number are not both reserved"
            continue
        before, after = field_of(old, field), field_of(new, fields[field.number])
        for part in Field._fields:
            was, now = getattr(before, part), getattr(after, part)
            if was != now:
                yield f"{here}: {part} was {was or 'none'}, is {now or 'none'}"


def enum_breaks(name: str, old: pb.EnumDescriptorProto, new: pb.EnumDescriptorProto) -> Iterator[str]:
    values = {value.number: value.name for value in new.value}
    for value in old.value:
        here = f"{name}.{value.name} = {value.number}"
        if value.number not in values:
            if not value.options.deprecated:
                yield f"{here}: removed, and the release does not mark it deprecated"
            elif not is_reserved(new.reserved_range, new.reserved_name, value.number, value.name, True):
                yield f"{here}: removed, but its name and number are not both reserved"
        elif values[value.number] != value.name:
            yield f"{here}: is now {values[value.number]}"


def method_breaks(name: str, old: pb.MethodDescriptorProto, new: pb.MethodDescriptorProto) -> Iterator[str]:
    for part in ("input_type", "output_type", "client_streaming", "server_streaming"):
        was, now = getattr(old, part), getattr(new, part)
        if was != now:
            yield f"{name}: {part} was {was}, is {now}"


def breaks(old: pb.FileDescriptorSet, new: pb.FileDescriptorSet) -> Iterator[str]:
    """Yields what a peer of `old` would miss in `new`."""
    before, after = contract_of(old), contract_of(new)
    for kind, compare in (("messages", message_breaks), ("enums", enum_breaks), ("methods", method_breaks)):
        definitions = getattr(after, kind)
        for name, definition in getattr(before, kind).items():
            if name not in definitions:
                if not definition.options.deprecated:
                    yield f"{name}: removed, and the release does not mark it deprecated"
                continue
            yield from compare(name, definition, definitions[name])


def read(path: str) -> pb.FileDescriptorSet:
    with open(path, "rb") as file:
        return pb.FileDescriptorSet.FromString(file.read())


def compile_contract(path: str) -> None:
    """Writes the descriptors of today's contract to `path`, without comments."""
    sources = sorted(glob.glob(f"{SOURCES}/sortition/v1/*.proto"))
    subprocess.run(
        ["protoc", "--include_imports", f"--descriptor_set_out={path}", f"-I{SOURCES}", *sources], check=True
    )


def main(arguments) -> Optional[int]:
    if arguments:
        if len(arguments) != 2 or arguments[0] != "--write":
            raise SystemExit("usage: contract.py [--write RELEASE]")
        os.makedirs(RELEASED, exist_ok=True)
        return compile_contract(f"{RELEASED}/{arguments[1]}.binpb")
    found = 0
    with tempfile.TemporaryDirectory() as folder:
        compile_contract(f"{folder}/contract.binpb")
        contract = read(f"{folder}/contract.binpb")
    for path in sorted(glob.glob(f"{RELEASED}/*.binpb")):
        for finding in breaks(read(path), contract):
            print(f"contract: breaks release {os.path.basename(path)[: -len('.binpb')]}: {finding}")
            found += 1
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
