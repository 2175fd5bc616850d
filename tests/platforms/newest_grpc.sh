#!/bin/sh
# Adds Debian's newest gRPC to a root of unstable that is being made: newest_grpc.sh ROOT, as mmdebstrap's setup hook.
#
# gRPC and Protobuf come from experimental. All else comes from unstable, as the Abseil that they were built with: a
# program that is compiled with a later one does not link.
set -eu
root=$1
sed 's/ unstable / experimental /' "$root/etc/apt/sources.list" >"$root/etc/apt/sources.list.d/experimental.list"
cat >"$root/etc/apt/preferences.d/newest-grpc" <<'TEXT'
Package: *grpc* *protobuf* libproto* libutf8-range* libupb*
Pin: release a=experimental
Pin-Priority: 600
TEXT
