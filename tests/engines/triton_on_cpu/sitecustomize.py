"""Lets vLLM's runner of generation 2 run on a CPU: a Python whose path has this folder imports this when it starts.

Triton's interpreter computes what the runner's kernels compute (TRITON_INTERPRET). vLLM starts the runner only where it
finds Triton's backend for CPUs. It finds one here, and never asks it for anything.
"""

import os
import types

if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1":
    try:
        from triton.backends import backends
    except ImportError:  # a Python without Triton
        pass
    else:
        backends["cpu"] = types.SimpleNamespace(driver=types.SimpleNamespace(is_active=lambda: True), compiler=None)
