#!/bin/sh
# Runs $CONTAINED with these arguments as another container would: with separate processes, IPC, mounts and network, and
# with the same files. Either ends with the other.
# shellcheck disable=SC2016 # to be expanded by the shell within
exec unshare --mount --pid --fork --kill-child --ipc --net sh -c 'ip link set lo up && exec "$0" "$@"' "$CONTAINED" "$@"
