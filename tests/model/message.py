"""A step in the making: its rows and tensors, and the payloads that hold them."""

import rows as made
from contract import StreamRequest

NUMBERS = {"f32": 1, "f16": 2, "bf16": 3}
PLAIN = dict(priority=None, timeout=False, early=False, stride=False, tensor_rows=False)


class Message:
    """Collects rows, then seals them into one message."""

    def __init__(self, world, event, server):
        self.world, self.event, self.server, self.dtype = world, event, server, event["dtype"]
        self.request = StreamRequest()
        self.step = self.request.step
        if event["priority"] is not None:
            self.step.priority = event["priority"]
        if event["timeout"]:
            self.step.timeout.seconds, self.step.timeout.nanos = 200, 5
        self.step.answer_early = event["early"]
        self.logits, self.masks, self.drafts, self.pairs = [], [], [], b""
        self.stride, self.draft_dtype = event["stride"], event["draft_dtype"]
        self.rows, self.attached = [], []
        self.counts_rows = event["tensor_rows"]
        self.late = []  # rows that name their tensor rows, which come after all others

    def seal(self):
        step, width = self.step, self.world["vocabulary"]
        size = made.SIZES[self.dtype]
        tensor = step.logits
        tensor.vocabulary_size = width
        tensor.dtype = NUMBERS[self.dtype]
        for row, logits in self.late:
            row.tensor_row, self.counts_rows = len(self.logits), True
            self.logits += logits
        if self.logits:
            gap = b"\x5a" * (size * 3) if self.stride else b""
            if gap:
                tensor.row_stride_bytes = width * size + len(gap)
            if self.counts_rows:
                tensor.tensor_rows = len(self.logits)
            self.attach(tensor.source, b"".join(row.tobytes() + gap for row in self.logits))
        if self.masks:
            step.masks.rows = len(self.masks)
            self.attach(step.masks.source, b"".join(self.masks))
        if self.drafts:
            step.draft_probabilities.rows = len(self.drafts)
            step.draft_probabilities.dtype = NUMBERS[self.draft_dtype]
            self.attach(step.draft_probabilities.source, b"".join(row.tobytes() for row in self.drafts))
        if any(row.compact for row in step.rows):
            self.attach(tensor.pairs, self.pairs)
        return self.order_payloads()

    def attach(self, source, data):
        source.inline.SetInParent()
        self.attached.append((source, data))

    def order_payloads(self):
        """Puts the payloads in one of their orders."""
        first = len(self.request.step.rows) % len(self.attached) if self.attached else 0
        for number, (source, data) in enumerate(self.attached[first:] + self.attached[:first]):
            source.inline.payload = number
            self.request.payloads.append(data)
        return self.request
