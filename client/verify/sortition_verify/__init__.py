"""The law of sampling in numpy, written from its pages alone, to check what others drew.

    from sortition_verify import Row, answer, compile_options, widen

    row = Row(bits=widen(elements, "bf16"), compiled=compile_options({"temperature": 0.8, "top_p": 0.95}), seed=42,
              position=17)
    got = answer(row)
    print(got.token, got.processed.logprob(got.token), len(got.processed.ids))

It shares no code with the sampler that it checks, needs numpy alone and loads no native module. `python -m
sortition_verify FILE` runs published vectors.
"""

from sortition_verify.functions import widen
from sortition_verify.options import ORDERS, compile_options, first_state
from sortition_verify.inclusion import verify_inclusion
from sortition_verify.receipts import Report, Verifier, verify
from sortition_verify.row import Answer, Compiled, Distribution, Draft, Row, RowError, answer, float_bits
from sortition_verify.vectors import differences

__version__ = "0.1.0"
LAW_VERSION = 1

__all__ = ["LAW_VERSION", "ORDERS", "Answer", "Compiled", "Distribution", "Draft", "Report", "Row", "RowError",
           "Verifier", "answer", "compile_options", "differences", "first_state", "float_bits", "verify",
           "verify_inclusion", "widen"]
