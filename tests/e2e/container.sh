#!/bin/sh
# Runs $CONTAINED with these arguments as another container would have it: processes, IPC, mounts and the network are
# its own, and files are in common. Ends with it, and it with this.
# shellcheck disable=SC2016 # to be expanded by the shell within
exec unshare --mount --pid --fork --kill-child --ipc --net sh -c 'ip link set lo up && exec "$0" "$@"' "$CONTAINED" "$@"
