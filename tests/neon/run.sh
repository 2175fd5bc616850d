#!/usr/bin/env bash
# Compiles the law and the CPU kernels for AArch64, runs check.cc in an emulator, and leaves answers.cc in
# build/neon/answers, a device for sortition_self_test. Needs a cross compiler, QEMU's user
# emulation and Highway's headers; says so where one is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

readonly compiler=aarch64-linux-gnu-g++ emulator=qemu-aarch64 build=build/neon
for tool in "$compiler" "$emulator"; do
  command -v "$tool" >/dev/null || { echo "neon: there is no $tool; ./dev neon installs it" >&2; exit 1; }
done
mkdir -p "$build"

# Only Highway's headers are taken from this machine: they do not depend on the processor.
mkdir -p "$build/include"
ln -sfn /usr/include/hwy "$build/include/hwy"
# kernels/cpu/CMakeLists.txt says why these targets.
neon=HWY_NEON
if grep --quiet 'define HWY_NEON_WITHOUT_AES' /usr/include/hwy/detect_targets.h; then neon=HWY_NEON_WITHOUT_AES; fi
readonly flags=(-std=c++20 -O1 -ffp-contract=off -fno-tree-vectorize -Wall -Wextra -I. "-I$build/include"
  -DHWY_COMPILE_ALL_ATTAINABLE -DHWY_BROKEN_EMU128=0 "-DHWY_DISABLED_TARGETS=(~($neon|HWY_EMU128))")

sources=(tests/neon/{check,answers,highway}.cc kernels/cpu/*.cc kernels/cpu/*/*.cc kernels/law/*.cc
  kernels/law/golden/*.cc)
objects=()
running=0
for source in "${sources[@]}"; do
  object=$build/${source//\//_}.o
  objects+=("$object")
  if ((running == $(nproc))); then
    wait -n
    running=$((running - 1))
  fi
  "$compiler" "${flags[@]}" -c "$source" -o "$object" &
  running=$((running + 1))
done
for ((; running > 0; --running)); do wait -n; done
for program in check answers; do
  "$compiler" -static -o "$build/$program" "$build/tests_neon_$program.cc.o" "${objects[@]:2}"
done
"$emulator" "$build/check"
