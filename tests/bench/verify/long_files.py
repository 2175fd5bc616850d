"""Measures the memory and time of sortitionctl over long files of receipts: long_files.py [--megabytes=N]

Makes files under build/: one chain with long kept sets, and very many short chains. Runs `sortitionctl verify` and
`receipts root` over both, and `sortitionctl replay` over the first against a server that it starts, with logits from a
file of zeros. Prints the largest resident memory and the time of each.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = ROOT / "build/release"
FOLDER = BUILD / "long_files"
sys.path[:0] = [str(ROOT / "tests/verifier"), str(ROOT / "tests/server")]

import receipt_maker as maker  # noqa: E402
from sortitiond_process import Sortitiond  # noqa: E402
from sortition_verify import records  # noqa: E402

VOCABULARY, KEPT, SHORT_CHAIN = 8192, 4096, 100


def write_chain(file, chain, count, kept):
    """Appends a chain of `count` receipts that all state the same kept tokens, and a signature."""
    file.write(chain.records[0])
    listed = b"".join(struct.pack("<II", token, 0) for token in range(kept))
    head = chain.head
    for index in range(count):
        body = records.RECEIPT_HEAD.pack(chain.id, head, index, index + 1, 0, index, 0, 2, 1, 0, 0, 1, 0, kept) + listed
        head = hashlib.sha256(body).digest()
        file.write(struct.pack("<BI", records.RECEIPT, len(body)) + body)
    chain.head, chain.count = head, count


def write_files(size):
    """Writes one long chain, then many short ones; returns their receipts and chains."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    chain = maker.Chain(vocabulary=VOCABULARY, parameters={"temperature": 0.8})
    count = size // (records.RECEIPT_HEAD.size + 5 + 8 * KEPT)
    with open(FOLDER / "one_chain", "wb") as file:
        write_chain(file, chain, count, KEPT)
        file.write(maker.signature(maker.KEY, chain))
    (FOLDER / "seeds").write_text(maker.seed_line(chain))
    with open(FOLDER / "logits", "wb") as file:
        file.truncate(count * VOCABULARY * 2)
    many = 0
    with open(FOLDER / "many_chains", "wb") as file:
        while file.tell() < size // 8:
            many += 1
            write_chain(file, maker.Chain(vocabulary=VOCABULARY, nonce=many), SHORT_CHAIN, 8)
    return count, many


def measured(name, command):
    """Runs a command. Prints its largest resident memory in MiB, seconds and output."""
    begin, kilobytes = time.monotonic(), 0
    with open(FOLDER / "said", "w+", encoding="utf-8") as said:
        process = subprocess.Popen(command, stdout=said)
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
            # Not ru_maxrss, which counts this interpreter before the exec.
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
            found = re.search(r"VmHWM:\s+(\d+)", status)
            kilobytes = int(found.group(1)) if found else kilobytes
            time.sleep(0.02)
        _, _, usage = os.wait4(process.pid, 0)
        said.seek(0)
        last = said.read().splitlines()[-1]  # a replay names differences before
    print(json.dumps({"name": name, "resident_mib": kilobytes // 1024, "seconds": round(time.monotonic() - begin, 1),
                      "processor_seconds": round(usage.ru_utime + usage.ru_stime, 1), "said": json.loads(last)}),
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--megabytes", type=int, default=2048)
    asked = parser.parse_args()
    count, many = write_files(asked.megabytes * 1_000_000)
    print(f"{count} receipts of one chain, {many} chains of {SHORT_CHAIN}", flush=True)
    tool = str(BUILD / "bin/sortitionctl")
    for name in ("one_chain", "many_chains"):
        measured(name, [tool, "verify", str(FOLDER / name), "--json"])
        measured(f"root of {name}", [tool, "receipts", "root", str(FOLDER / name)])
    with Sortitiond(str(BUILD / "bin/sortitiond"), "--listen=127.0.0.1:0", "--metrics_listen=") as server:
        measured("replay", [
            tool, "replay", str(FOLDER / "one_chain"), f"--seeds={FOLDER / 'seeds'}", f"--logits={FOLDER / 'logits'}",
            "--dtype=bf16", f"--server={server.serving['listen']}", "--json"])
    for path in FOLDER.iterdir():
        path.unlink()


if __name__ == "__main__":
    main()
