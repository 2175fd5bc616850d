#!/usr/bin/env bash
# Builds the image without a Docker engine and tests it: size, user, labels, bill of materials, and a real sampling
# stream and an archive from containers whose root is read-only. Needs root, because containers are made of mounts.
#
#   image.sh DEMO [--driver-packages "NAMES"] [--cuda FOLDER] [--traces] [--snapshot TIME]
#       [--output TRANSPORT:DESTINATION]
#
# DEMO is a sortition_demo, the worker of the trial. --cuda makes the variant with CUDA kernels, by the compiler in
# FOLDER, --traces the one that sends traces. --snapshot takes every package from Debian's archive of a time,
# e.g. 20261101T000000Z, so that the same packages can be had again. --output copies the image, e.g. to
# oci-archive:sortition.tar or to a registry (docker://...).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly most_bytes=300000000
readonly suite=bookworm
readonly cuda_image=localhost/sortition-cuda-compiler
readonly start_seconds=20 stop_seconds=45

say() { printf 'image: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

demo=${1:?the first argument is the path of sortition_demo}
shift
driver_packages='' cuda='' traces='' snapshot='' output=''
while (($# > 0)); do
  if [[ $1 == --traces ]]; then
    traces=1
    shift
    continue
  fi
  case $1 in
    --driver-packages) driver_packages=${2:?$1 takes package names} ;;
    --cuda) cuda=${2:?$1 takes a folder} ;;
    --snapshot) snapshot=${2:?$1 takes a time} ;;
    --output) output=${2:?$1 takes a destination} ;;
    *) fail "no option $1" ;;
  esac
  shift 2
done

readonly base=localhost/sortition-base:$suite${snapshot:+-$snapshot}

export BUILDAH_ISOLATION=chroot
work=$(mktemp --directory)
container='' server=''
cleanup() {
  if [[ -n $server ]]; then kill -KILL "$server" 2>/dev/null || true; fi
  if [[ -n $container ]]; then buildah rm "$container" >/dev/null || true; fi
  rm -rf "$work"
}
trap cleanup EXIT

make_base() {
  say "base: Debian $suite from its packages${snapshot:+ of $snapshot}"
  SNAPSHOT=$snapshot deploy/debian_root.sh "$suite" "$work/base.tar"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$work/base.tar" / >/dev/null
  buildah commit --quiet "$container" "$base" >/dev/null
  buildah rm "$container" >/dev/null
  container=''
}

# git_log FORMAT: prints about the last commit. The tree may belong to another user than root.
git_log() { TZ=UTC git -c safe.directory="$PWD" log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format="$1"; }

make_cuda() {
  local nvcc
  nvcc=$(find "$cuda" -path '*/bin/nvcc' | head -n 1)
  [[ -x $nvcc ]] || fail "there is no bin/nvcc in $cuda"
  say "CUDA compiler: $("$nvcc" --version | grep --only-matching 'release .*')"
  container=$(buildah from scratch)
  buildah add --quiet "$container" "$cuda" /cuda >/dev/null
  buildah commit --quiet "$container" "$cuda_image" >/dev/null
  buildah rm "$container" >/dev/null
  container=''
}

build_image() {
  version=$(sed -n 's/^project(Sortition VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
  image=localhost/sortition:$version${cuda:+-cuda}${traces:+-traces}
  say "building $image"
  buildah build --layers --pull-never --ignorefile deploy/Dockerfile.dockerignore --file deploy/Dockerfile \
    --build-arg BASE="$base" ${cuda:+--build-arg CUDA="$cuda_image"} \
    --build-arg JOBS="${JOBS:-2}" --build-arg DRIVER_PACKAGES="$driver_packages" --build-arg TRACES="$traces" \
    --build-arg VERSION="$version" --build-arg REVISION="$(git_log %H)" \
    --build-arg CREATED="$(git_log %cd)" \
    --tag "$image" . >"$work/build.log" 2>&1 || {
    tail -n 60 "$work/build.log" >&2
    fail "the build failed"
  }
}

inspected() { buildah inspect --type image --format "$1" "$image"; }

check_contents() {
  local root=$1 bytes user label materials
  bytes=$(du --summarize --bytes --one-file-system "$root" | cut -f1)
  say "size: $((bytes / 1000000)) MB"
  if [[ -z $driver_packages ]] && ((bytes > most_bytes)); then fail "the image has more than $most_bytes bytes"; fi
  user=$(inspected '{{.OCIv1.Config.User}}')
  [[ $user =~ ^[1-9][0-9]*:[1-9][0-9]*$ ]] || fail "the user is \"$user\", not numbers other than root's"
  for label in title description licenses version revision created; do
    [[ -n $(inspected "{{index .OCIv1.Config.Labels \"org.opencontainers.image.$label\"}}") ]] || fail "no label $label"
  done
  materials=$root/usr/local/share/sortition/sbom.spdx.json
  .venv/bin/pyspdxtools --infile "$materials" || fail "the bill of materials is not SPDX"
  grep -q '"name": "libgrpc++1.51"' "$materials" || fail "the bill of materials lacks a library"
}

# start_container ROOT FLAGS...: starts the image's entry point as its user. Its file system is read-only; only /proc is
# mounted in addition.
start_container() {
  local root=$1 entry
  shift
  entry=$(inspected '{{index .OCIv1.Config.Entrypoint 0}}')
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare --mount sh -c '
    mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && mount -t proc proc "$1/proc" || exit 1
    user=$2 root=$1
    shift 2
    exec chroot --userspec="$user" "$root" "$@"' \
    sh "$root" "$(inspected '{{.OCIv1.Config.User}}')" "$entry" "$@" 2>"$work/server.log" &
  server=$!
}

# Waits until the server says that it serves, and sets `address`.
await_serving() {
  for ((i = 0; i < 10 * start_seconds; ++i)); do
    grep -q '"event":"serving"' "$work/server.log" && break
    kill -0 "$server" 2>/dev/null || fail "it has ended: $(cat "$work/server.log")"
    sleep 0.1
  done
  address=$(sed -n 's/.*"event":"serving".*"listen":"\([^"]*\)".*/\1/p' "$work/server.log")
  [[ -n $address ]] || fail "it does not serve after $start_seconds s: $(cat "$work/server.log")"
}

stop_container() {
  local status=0
  kill -TERM "$server"
  timeout "$stop_seconds" tail --pid="$server" --follow /dev/null || fail "it does not stop within $stop_seconds s"
  wait "$server" || status=$?
  server=''
  ((status == 0)) || fail "it ended with status $status"
}

# Checks without a GPU that the image has the kernels: the server then misses a driver, and otherwise the kernels.
check_cuda() {
  local root=$1 missed
  : >"$work/server.log"
  start_container "$root" --devices=cuda,cpu --listen=127.0.0.1:0 --metrics_listen=127.0.0.1:0
  await_serving
  missed=$(sed -n 's/.*"event":"device_missing".*"reason":"\([^"]*\)".*/\1/p' "$work/server.log")
  stop_container
  case $missed in
    *"no CUDA kernels"*) [[ -z $cuda ]] || fail "it has no CUDA kernels" ;;
    *) [[ -n $cuda ]] || fail "without a CUDA compiler it misses \"$missed\"" ;;
  esac
  say "CUDA: $missed"
}

try_stream() {
  local root=$1
  say "trial: a container with a read-only root"
  : >"$work/server.log"
  # A build without traces refuses the flag. Nothing listens there, which a server with traces does not mind.
  start_container "$root" --listen=127.0.0.1:0 --metrics_listen=127.0.0.1:0 ${traces:+--otlp_endpoint=127.0.0.1:1}
  await_serving
  # The demo compares every token with the one drawn in its own process.
  "$demo" --connect="$address" | tail -n 3
  stop_container
}

# Makes an archive in a container, and compares it with the published one.
try_proof() {
  local root=$1
  say "trial: an archive of what the container's processor answers"
  mkdir -m 777 "$work/proof"
  cp docs/proof/cpu-scalar.tar.gz "$work/proof"
  # shellcheck disable=SC2016 # the inner shell expands it
  unshare --mount sh -ec '
    mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && mount -t proc proc "$1/proc"
    mount --bind "$3" "$1/srv"
    for argument in --prove=/srv/own.tar.gz "--compare /srv/cpu-scalar.tar.gz /srv/own.tar.gz"; do
      chroot --userspec="$2" "$1" /usr/local/bin/sortition_self_test $argument
    done' sh "$root" "$(inspected '{{.OCIv1.Config.User}}')" "$work/proof" ||
    fail "the archive is not the published one"
}

buildah inspect --type image "$base" >/dev/null 2>&1 || make_base
if [[ -n $cuda ]]; then make_cuda; fi
build_image
container=$(buildah from --pull-never "$image")
root=$(buildah mount "$container")
check_contents "$root"
try_stream "$root"
try_proof "$root"
check_cuda "$root"
if [[ -n $output ]]; then buildah push "$image" "$output"; fi
say "$image is good"
