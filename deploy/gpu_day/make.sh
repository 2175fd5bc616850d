#!/usr/bin/env bash
# Fills a folder with all that travels to a machine with a GPU: the bundle, the CUDA kernels assembled with -O1, peers
# compiled ahead, and run.sh, which runs them there. Peers come from outside the tree and never go into it.
# usage: make.sh BUILD_FOLDER BUNDLE_FOLDER OUTPUT_FOLDER PEERS_FOLDER; `./dev gpu-day` calls it.
# PEERS_FOLDER: Python packages that it has put there, FlashInfer's and CUDA's headers.
set -euo pipefail

readonly build=$1 bundle=$2 output=$3 peers=$4
readonly root=${BASH_SOURCE[0]%/*}/../..
readonly most_bytes=$((64 << 20))  # with the tree
readonly modules=(sample chain sequence)

say() { printf 'gpu-day: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# cached NAME: prints the value that the build's configuration has.
cached() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

# The day's GPUs are H100 and H200.
assemble() {
  local module ptxas
  ptxas=$(cached SORTITION_PTXAS)
  [[ -x $ptxas ]] || fail "there is no ptxas of CUDA 12; ./dev setup cuda brings it"
  mkdir -p "$output/o1"
  for module in "${modules[@]}"; do
    "$ptxas" -arch=sm_90 -O1 -o "$output/o1/$module.cubin" "$build/kernels/cuda/${module}_90.ptx"
  done
}

# Compiles FlashInfer's kernels into one library, once for each version of the packages and the source.
compile_flashinfer() {
  local library=$peers/libsortition_peers.so source=$root/deploy/gpu_day/flashinfer.cu include=()
  local folder
  for folder in "$peers"/flashinfer/data/include "$peers"/nvidia/cu13/include{/cccl,}; do
    if [[ -d $folder ]]; then include+=(-isystem "$folder"); fi
  done
  if [[ ! $library -nt $source || ! $library -nt $peers/flashinfer ]]; then
    say "compiling FlashInfer's kernels, for a minute or two"
    "$(cached SORTITION_NVCC)" -std=c++17 -O3 -shared -Xcompiler -fPIC -arch=sm_90a --expt-relaxed-constexpr \
      "${include[@]}" -o "$library.new" "$source" 2>"$peers/nvcc.log" || fail "$(tail -n 20 "$peers/nvcc.log")"
    strip --strip-unneeded "$library.new"
    mv "$library.new" "$library"
  fi
  gzip --best --stdout "$library" >"$output/peers/libsortition_peers.so.gz"
}

# vLLM's wheel is too large to fetch for three files. ./dev test engines installs it.
copy_vllm() {
  local package file
  package=$(find -L "$root/build/engines" -maxdepth 5 -path '*/site-packages/vllm' -print -quit 2>/dev/null || true)
  if [[ -z $package ]]; then
    say "left out: vLLM's Triton kernel; ./dev test engines installs vLLM"
    return
  fi
  mkdir -p "$output/peers/vllm"
  for file in v1/sample/ops/topk_topp_triton model_executor/warmup/jit_warmup{,_triton_helper}; do
    install -m 644 "$package/$file.py" "$output/peers/vllm"
  done
}

rm -rf "$output"
mkdir -p "$output/peers"
install "$root/deploy/gpu_day/run.sh" "$output/run.sh"
cp "$bundle"/sortition-*-linux-x86_64.tar.gz "$output/bundle.tar.gz"
assemble
compile_flashinfer
copy_vllm
tree=$(cd "$root" && git ls-files -z | xargs -0 du -cb | tail -n 1 | cut -f 1)
made=$(du -sb "$output" | cut -f 1)
((tree + made < most_bytes)) || fail "$made bytes, and $tree of the tree: at most $most_bytes"
say "$output: $((made >> 20)) MiB, and $((tree >> 20)) MiB of the tree; run.sh RESULTS on the machine"
