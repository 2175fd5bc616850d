"""What other samplers cost on the same GPU, over the shapes of bench_cuda: PyTorch, FlashInfer and vLLM's Triton
kernel, each where it is installed. Graph replays over rotated inputs where the peer can be captured, else events
around calls. Prints a table and writes JSON like the benchmarks do."""

import argparse
import json
import sys
from typing import Callable, Dict, List, Optional

import torch

SHAPES = [(1, 128256), (32, 128256), (256, 128256), (512, 151936)]
TOP_K, TOP_P, TEMPERATURE = 50, 0.95, 0.7


def logits_of(kind: str, rows: int, vocabulary: int, seed: int) -> torch.Tensor:
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
    return x.bfloat16()


def pytorch_top_k_top_p(x: torch.Tensor) -> torch.Tensor:
    """The sort-based sampler that engines fall back to."""
    ordered, index = (x.float() / TEMPERATURE).sort(dim=-1, descending=True)
    ordered[:, TOP_K:] = -torch.inf
    probabilities = ordered.softmax(dim=-1)
    beyond = probabilities.cumsum(dim=-1) - probabilities >= TOP_P
    probabilities = probabilities.masked_fill(beyond, 0)
    noise = torch.empty_like(probabilities).exponential_()
    return index.gather(1, (probabilities / noise).argmax(dim=-1, keepdim=True))


def flashinfer_top_k_top_p() -> Optional[Callable[[torch.Tensor], torch.Tensor]]:
    try:
        import flashinfer.sampling  # pylint: disable=import-outside-toplevel
    except ImportError:
        return None
    return lambda x: flashinfer.sampling.top_k_top_p_sampling_from_logits(x.float() / TEMPERATURE, TOP_K, TOP_P)


def vllm_top_k_top_p() -> Optional[Callable[[torch.Tensor], torch.Tensor]]:
    try:
        # pylint: disable=import-outside-toplevel
        from vllm.v1.sample.ops.topk_topp_triton import apply_top_k_top_p_triton
    except ImportError:
        return None

    def sample(x: torch.Tensor) -> torch.Tensor:
        k = torch.full((x.shape[0],), TOP_K, dtype=torch.int32, device="cuda")
        p = torch.full((x.shape[0],), TOP_P, dtype=torch.float32, device="cuda")
        probabilities = apply_top_k_top_p_triton(x.float() / TEMPERATURE, k, p).softmax(dim=-1)
        return (probabilities / torch.empty_like(probabilities).exponential_()).argmax(dim=-1)

    return sample


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("peers: no CUDA device", file=sys.stderr)
        return 1
    found: Dict[str, Optional[Callable[[torch.Tensor], torch.Tensor]]] = {
        "pytorch": pytorch_top_k_top_p,
        "flashinfer": flashinfer_top_k_top_p(),
        "vllm_triton": vllm_top_k_top_p(),
    }
    results = []
    for name, run in found.items():
        if run is None:
            print(f"{name}: not installed")
            continue
        for rows, vocabulary in SHAPES:
            for kind in ("peaked", "flat", "ties") if rows == 256 else ("peaked",):
                count = max(3, min(50, 200_000_000 // (rows * vocabulary * 2)))
                inputs = [logits_of(kind, rows, vocabulary, seed) for seed in range(count)]
                value = microseconds(run, inputs, arguments.rounds)
                print(f"{name}/top_k_top_p_{rows}_{kind} {value:10.1f} us")
                result = {"name": f"{name}/top_k_top_p_{rows}_{kind}", "value": value, "unit": "us"}
                results.append({**result, "baseline": None, "ratio": None})
                del inputs
    if arguments.json:
        machine = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump({"suite": "cuda_peers", "machine": machine, "results": results}, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
