"""The contract check finds each change that breaks a peer, and passes additions."""

import unittest

from google.protobuf import text_format

import contract

RELEASED = """
file {
  name: "sortition/v1/x.proto" package: "sortition.v1" syntax: "proto3"
  message_type {
    name: "Row"
    field { name: "seed" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
    field { name: "tokens" number: 2 type: TYPE_UINT32 label: LABEL_REPEATED }
    field { name: "draw" number: 3 type: TYPE_BOOL label: LABEL_OPTIONAL oneof_index: 0 }
    field { name: "old" number: 4 type: TYPE_BOOL label: LABEL_OPTIONAL options { deprecated: true } }
    oneof_decl { name: "task" }
    enum_type { name: "Mode" value { name: "NONE" number: 0 } value { name: "GREEDY" number: 1 } }
  }
  service {
    name: "Sampling"
    method { name: "Stream" input_type: ".sortition.v1.Row" output_type: ".sortition.v1.Row" client_streaming: true }
  }
}
"""


def breaks(old_text: str = "", new_text: str = ""):
    """Compares the release with a contract in which `new_text` replaces `old_text`."""
    assert old_text in RELEASED
    read = lambda text: text_format.Parse(text, contract.pb.FileDescriptorSet())
    return list(contract.breaks(read(RELEASED), read(RELEASED.replace(old_text, new_text))))


class ContractTest(unittest.TestCase):
    def assert_one(self, found, *words):
        self.assertEqual(len(found), 1, found)
        for word in words:
            self.assertIn(word, found[0])

    def test_same_contract_passes(self):
        self.assertEqual(breaks(), [])

    def test_additions_pass(self):
        field = 'field { name: "new" number: 9 type: TYPE_BOOL label: LABEL_OPTIONAL }'
        self.assertEqual(breaks('oneof_decl { name: "task" }', field + ' oneof_decl { name: "task" }'), [])
        value = 'value { name: "GREEDY" number: 1 }'
        self.assertEqual(breaks(value, value + ' value { name: "COUPLED" number: 2 }'), [])

    def test_removed_field_is_found(self):
        field = 'field { name: "seed" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }'
        self.assert_one(breaks(field, ""), "Row.seed = 1", "deprecated")
        reserved = 'reserved_range { start: 1 end: 2 } reserved_name: "seed"'
        self.assert_one(breaks(field, reserved), "Row.seed = 1", "deprecated")

    def test_deprecated_field_must_be_reserved(self):
        field = 'field { name: "old" number: 4 type: TYPE_BOOL label: LABEL_OPTIONAL options { deprecated: true } }'
        self.assert_one(breaks(field, ""), "Row.old = 4", "reserved")
        self.assert_one(breaks(field, "reserved_range { start: 4 end: 5 }"), "Row.old = 4", "reserved")
        self.assertEqual(breaks(field, 'reserved_range { start: 4 end: 5 } reserved_name: "old"'), [])

    def test_changed_fields_are_found(self):
        self.assert_one(breaks('name: "seed"', 'name: "salt"'), "name was seed, is salt")
        self.assert_one(breaks("TYPE_UINT64", "TYPE_INT64"), "type was uint64, is int64")
        self.assert_one(breaks("LABEL_REPEATED", "LABEL_OPTIONAL"), "label was repeated, is singular")
        self.assert_one(breaks(" oneof_index: 0", ""), "oneof was task, is none")

    def test_presence_is_part_of_a_field(self):
        seed = "number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL"
        found = breaks(seed, seed + " proto3_optional: true oneof_index: 0")
        self.assert_one(found, "label was singular, is optional")

    def test_renumbered_field_is_found(self):
        self.assertEqual(len(breaks("number: 2", "number: 7")), 1)

    def test_changed_enum_is_found(self):
        self.assert_one(breaks('value { name: "GREEDY" number: 1 }', ""), "Row.Mode.GREEDY = 1", "removed")
        self.assert_one(breaks('"GREEDY"', '"COUPLED"'), "is now COUPLED")

    def test_removed_message_is_found(self):
        found = breaks('name: "Row"', 'name: "Line"')
        self.assertTrue(any(finding.startswith("sortition.v1.Row: removed") for finding in found), found)

    def test_changed_method_is_found(self):
        self.assert_one(breaks(" client_streaming: true", ""), "client_streaming was True, is False")
        self.assert_one(breaks('name: "Stream"', 'name: "Pipe"'), "Sampling.Stream: removed")

    def test_other_packages_are_not_compared(self):
        self.assertEqual(breaks('package: "sortition.v1"', 'package: "grpc.health.v1"')[0].count("removed"), 1)
        read = lambda text: text_format.Parse(text, contract.pb.FileDescriptorSet())
        other = RELEASED.replace('package: "sortition.v1"', 'package: "grpc.health.v1"')
        self.assertEqual(list(contract.breaks(read(other), read(""))), [])


if __name__ == "__main__":
    unittest.main()
