#!/usr/bin/env bash
# Makes the bundle: a tarball of the server, its command-line client, the library, and the programs that test and
# measure them on a machine with other devices. It brings every library that it needs except the C library's own and
# drivers, by relative run paths, so it runs on any x86-64 Linux with glibc 2.36 or newer. Then tests it from another
# folder and an empty environment. usage: bundle.sh BUILD_FOLDER OUTPUT_FOLDER; `./dev bundle` calls it.
set -euo pipefail

readonly build=$1 output=$2
readonly root=${BASH_SOURCE[0]%/*}/..
readonly most_bytes=$((64 << 20))
readonly newest_glibc=2.36
readonly programs=(sortitiond sortitionctl sortition_self_test cuda_gpu_test bench_cuda bench_served bench_cpu
  bench_vulkan)

say() { printf 'bundle: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

version=$(sed -n 's/^project(Sortition VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
readonly name=sortition-$version-linux-x86_64
readonly stage=$output/$name

# needed FILE...: prints the libraries that the files load, except those of the machine's C library.
needed() {
  ldd "$@" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libanl|ld-linux-x86-64)\.so'
}

# library NAME: prints where this machine has the library, if it does.
library() { ldconfig -p | sed -n "s/.*$1 .*x86-64.* => //p" | head -n 1; }

assemble() {
  local library loader
  rm -rf "$stage"
  mkdir -p "$stage/bin" "$stage/share" "$stage/lib/vulkan"
  cmake --install "$build" --component library --prefix "$stage" >/dev/null
  install "${programs[@]/#/$build/bin/}" "$stage/bin"
  install -m 755 "$root/deploy/bundle/self-test" "$stage/self-test"
  install -m 644 "$root/deploy/bundle/README.md" "$root/LICENSE" "$stage"
  install -m 644 "$root"/tests/bench/cuda/{peers,compiled_peers}.py "$stage/share"
  for library in $(needed "$stage"/bin/* "$stage"/lib*/libsortition.so); do install -m 644 "$library" "$stage/lib"; done
  # Vulkan's loader is found at run time. Drivers belong to the machine.
  loader=$(library libvulkan.so.1)
  if [[ -n $loader ]]; then install -m 644 "$loader" "$stage/lib/libvulkan.so.1"; fi
  # Drivers for GPUs load these, which a machine without a display lacks.
  for library in libGLX.so.0 libEGL.so.1 libGLdispatch.so.0 libX11.so.6 libXext.so.6; do
    loader=$(library "$library")
    if [[ -z $loader ]]; then continue; fi
    install -m 644 "$loader" "$stage/lib/vulkan/$library"
    for loader in $(needed "$loader"); do install -m 644 "$loader" "$stage/lib/vulkan"; done
  done
  find "$stage/bin" "$stage/lib" -type f \( -perm -u+x -o -name '*.so*' \) -print0 |
    while IFS= read -r -d '' file; do
      strip --strip-unneeded "$file"
      # An old-style path holds also for libraries that the libraries load.
      # shellcheck disable=SC2016
      patchelf --force-rpath --set-rpath '$ORIGIN/../lib:$ORIGIN' "$file"
    done
}

check_glibc() {
  local newest
  # objdump fails for files that are no programs.
  newest=$(find "$stage/bin" "$stage/lib" -type f -print0 | { xargs -0 objdump -T 2>/dev/null || true; } |
    grep -o 'GLIBC_2\.[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1)
  [[ $(printf '%s\n%s\n' "$newest" "$newest_glibc" | sort -V | tail -n 1) == "$newest_glibc" ]] ||
    fail "it needs glibc $newest, newer than $newest_glibc"
}

# in_empty_environment FOLDER COMMAND...: runs the command from the bundle that was unpacked in FOLDER.
in_empty_environment() {
  local folder=$1
  shift
  (cd / && exec env -i "$folder/$name/$1" "${@:2}")
}

# Removes the trial's process and folder, also after a failure.
folder='' server=''
end_trial() {
  if [[ -n $server ]]; then kill -KILL "$server" 2>/dev/null || true; fi
  if [[ -n $folder ]]; then rm -rf "$folder"; fi
}
trap end_trial EXIT

try() {
  local foreign port
  folder=$(mktemp -d)
  tar -xzf "$output/$name.tar.gz" -C "$folder"
  foreign=$(env -i ldd "$folder/$name"/bin/* | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p' | grep -v "^$folder" |
    grep -Ev '/(libc|libm|libdl|librt|libpthread|libresolv|libanl)\.so' || true)
  [[ -z $foreign ]] || fail "it takes libraries of this machine: $foreign"

  # Runs without a shell around it, so that the signal reaches it.
  (cd / && exec env -i "$folder/$name/bin/sortitiond" --listen=127.0.0.1:0 --metrics_listen= \
    --port_file="$folder/port" 2>"$folder/log") &
  server=$!
  for _ in {1..100}; do
    [[ -s $folder/port ]] && break
    sleep 0.1
  done
  port=$(cat "$folder/port") || fail "the server does not start: $(cat "$folder/log")"
  printf '\0\0\0\0\0\0\200\077' >"$folder/row"
  in_empty_environment "$folder" bin/sortitionctl --server="127.0.0.1:$port" sample "$folder/row" --dtype=f32 \
    --temperature=0 >"$folder/sampled" || fail "no answer from the server"
  grep -q 1 "$folder/sampled" || fail "the server answers: $(cat "$folder/sampled")"
  kill -TERM "$server"
  wait "$server" || fail "the server does not end well: $(tail -n 3 "$folder/log")"
  server=''
  in_empty_environment "$folder" self-test "$folder/results" --rows=160 --no-bench --require=cpu --limit=300 \
    >"$folder/self-test.log" 2>&1 || fail "a device is wrong: $(tail -n 20 "$folder/self-test.log")"
  tar -xzOf "$folder/results/results.tar.gz" results/cpu_bits.json | grep -q 'cpu0/wrong' ||
    fail "self-test has left no results"
}

assemble
check_glibc
tar -czf "$output/$name.tar.gz" -C "$output" --owner=0 --group=0 "$name"
bytes=$(stat --format=%s "$output/$name.tar.gz")
((bytes < most_bytes)) || fail "$bytes bytes, at most $most_bytes"
try
say "$output/$name.tar.gz, $((bytes >> 20)) MiB"
