"""The most memory that a server holds by its own bounds, from the tables of its limits."""

import os
import re

ROOT = os.environ["TEST_SOURCE_DIR"]
# Bounds of all streams together, which add up; of unread answers to unary calls, those of one client.
SUMMED = {"max_received_bytes", "max_state_bytes", "max_mask_bytes", "max_shard_answer_bytes", "client_answer_bytes"}
# Bounds that add up where a flag turns the part on.
SUMMED_WITH = {"max_memory_bytes": "memory_listen", "receipt_queue_bytes": "receipt_key"}
# Bounds of a part of another one, of a device's memory, and of files.
PARTS = {"max_message_bytes", "max_compact_bytes", "stream_unanswered_bytes", "stream_mask_bytes",
         "client_received_bytes", "client_memory_bytes", "connection_memory_bytes", "connection_device_bytes",
         "receipt_file_bytes"}
# The program, its libraries and threads, tables of metrics, and the buffers of its devices.
PROGRAM_BYTES = 256 << 20


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def number(text):
    """The value of a C++ constant: a number, or one that is shifted."""
    value, shift = re.fullmatch(r"(?:uint64_t\{)?(\d+)u?\}?(?: << (\d+))?", text).groups()
    return int(value) << int(shift or 0)


def defaults():
    """From each limit's name to its default, for those that bound bytes and the number of streams."""
    text = read("service/flags.inc") + read("service/tuning_flags.inc")
    found = re.findall(r"^(?:LIMIT|NUMBER)\(\w+, (\w+_bytes|max_streams), ([^,]+),", text, re.MULTILINE)
    return {name: number(value) for name, value in found}


def most_memory(flags):
    """Bytes of a server with these flags, a dictionary."""
    known = defaults()
    if known.keys() != SUMMED | set(SUMMED_WITH) | PARTS | {"max_streams"}:
        raise ValueError(f"not in the sum, nor part of another bound: {sorted(known)}")
    values = {name: int(flags.get(name, value)) for name, value in known.items()}
    summed = SUMMED | {name for name, flag in SUMMED_WITH.items() if flags.get(flag)}
    # The transport holds this of each stream that is not read.
    unread = number(re.search(r"kUnreadStreamBytes = (.*);", read("service/server.cc")).group(1))
    return sum(values[name] for name in summed) + values["max_streams"] * unread + PROGRAM_BYTES
