"""Cost of other samplers on the same GPU, over the shapes of bench_cuda: PyTorch, FlashInfer and vLLM's Triton kernel,
each if it is there (`--peers` names the folder that deploy/gpu_day/make.sh fills).

A peer that can be captured is timed by replays of a graph over rotated inputs, others by events around calls. The timed
part begins with the bytes that bench_cuda reads, bf16 or f32. Prints a table and writes JSON like the benchmarks do,
after each case. With bench_cuda's JSON as `--ours`, the baseline of each result is bench_cuda's time for the same case,
and the ratio is the peer's time as a multiple of it. A token beyond the first k fails the peer."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import sys
from typing import Any, Callable, Dict, List, Optional

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

SHAPES = [(1, 128256), (32, 128256), (256, 128256), (512, 151936)]
F32_SHAPES = SHAPES[:3]
TOP_K, TOP_P, TEMPERATURE = 50, 0.95, 0.7


def logits_of(kind: str, is_f32: bool, rows: int, vocabulary: int, seed: int) -> torch.Tensor:
    """Rows as bench_cuda's: a normal bulk with 300 likelier tokens; almost flat; the first on a grid of 0.5."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    spread = 0.05 if kind == "flat" else 2.5
    x = spread * torch.randn(rows, vocabulary, device="cuda", generator=generator)
    if kind != "flat":
        place = torch.randint(vocabulary, (rows, 300), device="cuda", generator=generator)
        rank = torch.arange(1, 301, device="cuda", dtype=torch.float32)
        x.scatter_(1, place, (20 - 1.5 * rank.log()).expand(rows, -1))
    if kind == "ties":
        x = (2 * x).round() / 2
    return x.bfloat16().float() if is_f32 else x.bfloat16()


def pytorch_top_k_top_p(x: torch.Tensor) -> torch.Tensor:
    """The sort-based sampler that engines fall back to."""
    ordered, index = (x.float() / TEMPERATURE).sort(dim=-1, descending=True)
    ordered[:, TOP_K:] = -torch.inf
    probabilities = ordered.softmax(dim=-1)
    beyond = probabilities.cumsum(dim=-1) - probabilities >= TOP_P
    probabilities = probabilities.masked_fill(beyond, 0)
    noise = torch.empty_like(probabilities).exponential_()
    return index.gather(1, (probabilities / noise).argmax(dim=-1, keepdim=True))


def vllm_sampler(apply: Callable[..., torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    def sample(x: torch.Tensor) -> torch.Tensor:
        k = torch.full((x.shape[0],), TOP_K, dtype=torch.int32, device="cuda")
        p = torch.full((x.shape[0],), TOP_P, dtype=torch.float32, device="cuda")
        probabilities = apply(x.float() / TEMPERATURE, k, p).softmax(dim=-1)
        return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(dim=-1)

    return sample


def find_peers(folder: Optional[str]) -> Dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """The peers that are there. Names the others."""
    found: Dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    path = pathlib.Path(folder or "")
    import compiled_peers  # pylint: disable=import-outside-toplevel
    for name, file, make in (
            ("flashinfer", "libsortition_peers.so",
             lambda file: compiled_peers.FlashInfer(file, TOP_K, TOP_P, TEMPERATURE)),
            ("vllm_triton", "vllm", lambda file: vllm_sampler(compiled_peers.vllm_masker(file)))):
        if folder is None or not (path / file).exists():
            print(f"{name}: not there")
            continue
        try:
            made = make(path / file)
        except (AttributeError, ImportError, OSError, TypeError) as error:
            print(f"{name}: does not load: {error}")
            continue
        if name == "flashinfer":
            found.update(flashinfer=made.by_number, flashinfer_tensor=made.by_tensor)
        else:
            found[name] = made
    found["pytorch"] = pytorch_top_k_top_p  # takes longest
    return found


def kinds_of(is_f32: bool, rows: int) -> List[str]:
    return ["peaked", "flat", "ties"] if rows == 256 and not is_f32 else ["peaked"]


def case_of(kind: str, is_f32: bool, rows: int) -> str:
    return f"top_k_top_p_{'f32_' if is_f32 else ''}{rows}_{kind}"


def result_of(peer: str, case: str, value: float, ours: Dict[str, float]) -> Dict[str, Any]:
    """A result as the benchmarks write them; `ours`: microseconds of bench_cuda's cases, by their names."""
    baseline = ours.get(case)
    ratio = value / baseline if baseline else None
    return {"name": f"{peer}/{case}", "value": value, "unit": "us", "baseline": baseline, "ratio": ratio}


def line_of(result: Dict[str, Any]) -> str:
    line = f"{result['name']:<40} {result['value']:10.1f} us"
    return line if result["ratio"] is None else f"{line} {result['ratio']:8.2f} x {result['baseline']:.1f}"


def read_ours(path: Optional[str]) -> Dict[str, float]:
    if not path or not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return {result["name"]: result["value"] for result in json.load(file)["results"]}


def capture(run: Callable[[torch.Tensor], torch.Tensor], inputs: List[torch.Tensor]) -> Callable[[], None]:
    """One call for all inputs: a graph's replay, or the calls themselves where the peer synchronises."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for x in inputs:
                run(x)
        return graph.replay
    except RuntimeError:
        torch.cuda.synchronize()
        return lambda: [run(x) for x in inputs] and None


def microseconds(run: Callable[[torch.Tensor], torch.Tensor], inputs: List[torch.Tensor], rounds: int) -> float:
    for x in inputs[:2]:
        run(x)
    torch.cuda.synchronize()
    replay = capture(run, inputs)
    replay()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        replay()
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end) / len(inputs))
    return sorted(times)[rounds // 2]


def measure(run: Callable[[torch.Tensor], torch.Tensor], kind: str, is_f32: bool, rows: int, vocabulary: int,
            rounds: int) -> float:
    count = max(3, min(50, 400_000_000 // (rows * vocabulary * 4)))
    inputs = [logits_of(kind, is_f32, rows, vocabulary, seed) for seed in range(count)]
    drawn = run(inputs[0]).view(-1, 1).long()
    least = inputs[0].float().topk(TOP_K, dim=-1).values[:, -1:]
    if not bool((inputs[0].float().gather(1, drawn) >= least).all()):
        raise RuntimeError("a token beyond the first k")
    return microseconds(run, inputs, rounds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--ours", help="what bench_cuda has written in the same run, to compare with")
    parser.add_argument("--peers", help="folder of compiled peers")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    ours = read_ours(arguments.ours)
    if torch is None or not torch.cuda.is_available():
        print(f"peers: skipped: {'PyTorch is not installed' if torch is None else 'PyTorch has no CUDA device'}")
        return 1
    machine = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
    results: List[Dict[str, Any]] = []
    failed = 0
    cases = [(kind, is_f32, rows, vocabulary) for is_f32, shapes in ((False, SHAPES), (True, F32_SHAPES))
             for rows, vocabulary in shapes for kind in kinds_of(is_f32, rows)]
    for name, run in find_peers(arguments.peers).items():
        for kind, is_f32, rows, vocabulary in cases:
            case = case_of(kind, is_f32, rows)
            try:
                value = measure(run, kind, is_f32, rows, vocabulary, arguments.rounds)
            except (RuntimeError, TypeError) as error:
                print(f"{name}/{case}: failed: {error}", flush=True)
                failed += 1
                continue
            results.append(result_of(name, case, value, ours))
            print(line_of(results[-1]), flush=True)
            if arguments.json:
                with open(arguments.json, "w", encoding="utf-8") as file:
                    json.dump({"suite": "cuda_peers", "machine": machine, "results": results}, file, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
