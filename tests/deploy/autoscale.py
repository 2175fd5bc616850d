"""Shows the work of the remote overlay's autoscaler: a replica under more load than it carries, the queue's depth as
the metrics adapter would read it, the replicas that the autoscaler's rule then demands, and their effect.

    autoscale.py BUILD_FOLDER [SECONDS]

Stands in for the autoscaler's loop: every few seconds desired = ceil(replicas * metric / target), with the metric, the
target and the bounds of the manifest, within the replicas that the machine's processors can run. Prints a row for each.
"""

import math
import os
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = sys.argv[1]
SECONDS = float(sys.argv[2]) if len(sys.argv) > 2 else 40
os.environ.update(TEST_SOURCE_DIR=ROOT, TEST_SORTITIOND=f"{BUILD}/bin/sortitiond",
                  TEST_SORTITIONCTL=f"{BUILD}/bin/sortitionctl", TEST_SCALE_WORKER=f"{BUILD}/bin/scale_worker")
sys.path += [os.path.join(ROOT, "tests/server"), os.path.join(ROOT, "tests/monitoring")]

import expressions  # noqa: E402
import manifests  # noqa: E402
from prometheus_test import Prometheus  # noqa: E402
from proxies import HaProxy  # noqa: E402
from replicas import Replicas, Workers  # noqa: E402

PERIOD_S = 5
WINDOW = "5s"  # the manifest's minute, shortened as everything here is


def rule():
    """The target of the queue's depth, and the bounds of the number of replicas."""
    (spec,) = [made["spec"] for made in manifests.rendered()["remote"] if made["kind"] == "HorizontalPodAutoscaler"]
    (pods,) = [metric["pods"] for metric in spec["metrics"] if metric["type"] == "Pods"]
    return float(pods["target"]["averageValue"]), spec["minReplicas"], spec["maxReplicas"]


def depth_query():
    return expressions.autoscaling().replace("[1m]", f"[{WINDOW}]")


def main():
    target, least, most = rule()
    most = min(most, os.cpu_count() - 1)
    with tempfile.TemporaryDirectory() as folder, Replicas(most, "--max_stream_age=3s") as replicas:
        replicas.start(0)
        with Prometheus(folder, *replicas.metrics_addresses) as prometheus, HaProxy(replicas) as proxy, \
                Workers([proxy.address], "--workers=8", "--sequences=64", "--vocabulary=128256", "--heavy") as workers:
            prometheus.await_data(depth_query())
            print(f"target {target:g} rows a replica; {least} to {most} replicas")
            print("second replicas   depth desired  rows/s step p50 ms  streams")
            start = time.monotonic()
            while time.monotonic() - start < SECONDS:
                time.sleep(PERIOD_S)
                running = len(replicas.running)
                depths = prometheus.query(depth_query())
                depth = sum(depths) / len(depths)
                desired = running if abs(depth / target - 1) <= 0.1 else math.ceil(running * depth / target)
                desired = min(max(desired, running), most)  # no scale-down: its window is longer than this run
                (rows,) = prometheus.query(f"sum(rate(sortition_tokens_total[{WINDOW}]))")
                (latency,) = prometheus.query(
                    f"histogram_quantile(0.5, sum by (le) (rate(sortition_step_latency_seconds_bucket[{WINDOW}])))")
                print(f"{time.monotonic() - start:6.0f} {running:8} {depth:7.0f} {desired:7} {rows:7.0f} "
                      f"{1000 * latency:11.0f}  {replicas.all_streams()}", flush=True)
                replicas.start(*range(running, desired))
            print(workers.stop())


if __name__ == "__main__":
    main()
