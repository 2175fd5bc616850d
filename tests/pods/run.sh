#!/usr/bin/env bash
# Runs the tests of pods by podman, in a separate network and separate mounts, which end with them. Needs root. Nothing
# listens outside of that network. Storage lies in build/pods and is removed at the end.
# usage: run.sh BINARIES VERSION [PATTERN...], patterns of names of tests
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
readonly folder=$PWD/build/pods

say() { printf 'pods: %s\n' "$*" >&2; }

if [[ -z ${PODS_INSIDE:-} ]]; then
  trial='ip link add pods0 type bridge && ip link add pods1 type veth && iptables -t nat -L'
  if ! unshare --net --mount sh -c "$trial" &>/dev/null; then
    say "left out: this machine gives no namespaces with bridges and iptables"
    exit
  fi
  rm -rf "$folder"
  mkdir -p "$folder"
  status=0
  PODS_INSIDE=1 unshare --net --mount --propagation private "$0" "$@" || status=$?
  rm -rf "$folder"
  exit "$status"
fi

binaries=$1 version=$2
shift 2
ip link set lo up
for mounted in /var/lib/cni /dev/shm /run/netns; do
  mkdir -p "$mounted"
  mount -t tmpfs none "$mounted"
done

# Images that buildah has made are read where they are. Debian's crun refuses limits of open files above the process's.
images=$(buildah info --format '{{.store.GraphRoot}}')
cat >"$folder/storage.conf" <<TEXT
[storage]
driver = "overlay"
graphroot = "$folder/storage"
runroot = "$folder/run"
[storage.options]
additionalimagestores = ["$images"]
TEXT
cat >"$folder/containers.conf" <<TEXT
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "$folder/tmp"
[network]
network_config_dir = "$folder/networks"
TEXT
export CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
trap 'podman pod rm --all --force --time=1 >/dev/null || true' EXIT

say "the engine's image: the server's, and the tests' worker"
container=$(podman create --network=none "localhost/sortition:$version")
podman cp "$binaries/scale_worker" "$container:/usr/local/bin/scale_worker"
podman commit --quiet --change 'ENTRYPOINT []' "$container" localhost/sortition-engine >/dev/null
podman rm "$container" >/dev/null

export TEST_SOURCE_DIR=$PWD TEST_SCALE_WORKER=$binaries/scale_worker PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=tests/pods:tests/deploy:tests/server
.venv/bin/python3 -m unittest --verbose pods_test "${@/#/-k}"
