#!/bin/sh
# Proves and measures CUDA and Vulkan on a machine that has a driver alone: unpacks what `./dev gpu-day` has put beside
# this file, and runs the bundle's self-test with it, for 460 seconds at most. usage: run.sh RESULTS [OPTION...]
# RESULTS/results.tar.gz has everything after each stage. Options: those of deploy/bundle/self-test; by default
# --require=cuda,vulkan.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
results=${1:?usage: run.sh RESULTS [OPTION...]}
shift
[ $# -gt 0 ] || set -- --require=cuda,vulkan
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
tar -xzf "$here/bundle.tar.gz" -C "$folder" --strip-components=1
cp -r "$here/peers" "$folder"
gunzip "$folder/peers/libsortition_peers.so.gz"
"$folder/self-test" "$results" --rows=1000 --seconds=460 --images="$here/o1" --peers="$folder/peers" "$@"
