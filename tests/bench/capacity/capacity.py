"""Cost of a token for a deployment: bytes on the wire and processor time on both ends, by transport and rows a step.

    capacity.py BINARIES [--json FILE] [--seconds N]

Starts the sortitiond in the folder BINARIES with one thread for sampling, and loads it with `sortitionctl bench`.
TRANSPORT is tcp or unix with whole rows in the stream, or compact: compact rows over TCP.

server_cpu_TRANSPORT_N: processor time of the server for each row in steps of N rows; the baseline is the part spent
sampling. client_cpu_TRANSPORT_N: that of the load's process. rows_per_core_TRANSPORT_N: rows a second that one core of
a server carries at that cost. bytes_in_TRANSPORT_N and bytes_out_TRANSPORT_N: bytes of messages for each row; the
baseline of bytes_in is the row itself.
"""

import argparse
import json
import os
import subprocess
import tempfile

from sortitiond_process import Sortitiond

STEPS = (1, 16, 64)
COSTS = ("server_cpu", "client_cpu", "rows_per_core", "bytes_in", "bytes_out")
PARAMETERS = ("--temperature=0.8", "--top_k=50", "--top_p=0.95", "--vocabulary=128256", "--dtype=bf16")


def load(options, server, target, step_rows, rows):
    """The machine, and the results of one load by name."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(
            [os.path.join(options.binaries, "sortitionctl"), "bench", f"--target={target}", f"--step_rows={step_rows}",
             f"--rows={rows}", f"--metrics={server.serving['metrics']}", "--transport=grpc", "--shared_memory_bytes=0",
             "--tokens=1000000", f"--duration={options.seconds}s", "--interval=60s", *PARAMETERS,
             "--json", file.name], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        measured = json.load(file)
    return measured["machine"], {result["name"]: result for result in measured["results"]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries")
    parser.add_argument("--json")
    parser.add_argument("--seconds", type=float, default=3)
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder, Sortitiond(
            os.path.join(options.binaries, "sortitiond"), f"--listen=127.0.0.1:0,unix:{folder}/socket",
            "--metrics_listen=127.0.0.1:0", "--cpu_threads=1") as server:
        tcp, unix = server.serving["listen"].split(",")
        for transport, target, rows in (("tcp", tcp, "full"), ("unix", unix, "full"), ("compact", tcp, "compact")):
            for step_rows in STEPS:
                name = f"{transport}_{step_rows}"
                machine, found = load(options, server, target, step_rows, rows)
                for cost in COSTS:
                    result = {**found[cost], "name": f"{cost}_{name}"}
                    results.append(result)
                    ratio = "" if result["ratio"] is None else f"{result['ratio']:8.3f} x {result['baseline']:.2f}"
                    print(f"{result['name']:26} {result['value']:12.2f} {result['unit']:6} {ratio}", flush=True)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"suite": "capacity", "machine": machine, "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
