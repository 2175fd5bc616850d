"""Faults on real processes, under workers that draw every token a second time in process.

    chaos.py [--passes=N] [--seed=S] [--only=FAULT,...] [--fast] [--plant]

A pass is every fault once, in an order that the seed decides. No token may differ, no step may fail, and after a fault
that has an end the slowest step of a worker is how long it took to resume.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time

from faults import FAULTS

MOST_RESUME_MS = 1000


def can_lose_packets():
    """True if this process may have a separate loopback that loses packets."""
    if shutil.which("iptables") is None or shutil.which("unshare") is None:
        return False
    trial = "ip link set lo up && iptables -A INPUT -m statistic --mode random --probability 0.3 -j DROP"
    return subprocess.run(["unshare", "-n", "sh", "-c", trial], capture_output=True, check=False).returncode == 0


def in_own_network(name, argument):
    """Runs the fault in a process with its own loopback. Returns the findings."""
    program = ("import json, subprocess, sys; from faults import FAULTS;"
               "subprocess.run(['ip', 'link', 'set', 'lo', 'up'], check=True);"
               f"print(json.dumps(FAULTS[{name!r}][0]({argument!r})))")
    output = subprocess.run(["unshare", "-n", sys.executable, "-c", program], check=True, stdout=subprocess.PIPE,
                            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    return json.loads(output.stdout)


def judge(found):
    if found["tokens"] == 0:
        raise AssertionError("no token was drawn")
    if found["failed"] or found["different"]:
        raise AssertionError(f"{found['failed']} steps failed, {found['different']} tokens differ")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--passes", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("--fast", action="store_true", help="one pass, shorter pauses")
    parser.add_argument("--plant", action="store_true", help="count one token as different, which must be found")
    options = parser.parse_args()

    names = options.only.split(",") if options.only else list(FAULTS)
    if unknown := set(names) - set(FAULTS):
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(FAULTS)}")
    if "loss" in names and not can_lose_packets():
        print("chaos: loss is left out: it needs iptables and the right to a network of its own", file=sys.stderr)
        names.remove("loss")
    if "descriptors" in names and "UBSAN_OPTIONS" in os.environ:
        print("chaos: descriptors is left out: the sanitizer needs one to look at an object", file=sys.stderr)
        names.remove("descriptors")
    order = random.Random(options.seed)
    resumed_ms = []
    tokens = 0
    start = time.monotonic()
    passes = 1 if options.fast else options.passes
    for number in range(1, passes + 1):
        order.shuffle(names)
        for name in names:
            fault, fast, full = FAULTS[name]
            argument = fast if options.fast else full
            found = in_own_network(name, argument) if name == "loss" else fault(argument)
            found["different"] += options.plant
            try:
                judge(found)
            except AssertionError as wrong:
                sys.exit(f"chaos: pass {number}, {name}: {wrong} (seed {options.seed})")
            tokens += found["tokens"]
            resumed_ms += found.get("slowest_ms", [])
        print(f"chaos: pass {number} of {passes}, {time.monotonic() - start:.0f} s, {tokens} tokens", file=sys.stderr)
    resumed_ms.sort()
    p99 = resumed_ms[min(len(resumed_ms) - 1, len(resumed_ms) * 99 // 100)] if resumed_ms else 0
    print(f"chaos: {passes} passes of {len(names)} faults, seed {options.seed}: {tokens} tokens, 0 differ, "
          f"0 steps failed, resumed within {p99:.0f} ms (p99)")
    if not options.fast and p99 > MOST_RESUME_MS:
        sys.exit(f"chaos: resuming took more than {MOST_RESUME_MS} ms")


if __name__ == "__main__":
    main()
