#!/usr/bin/env bash
# Packs the .debs of a build and has lintian look at them. usage: build.sh BUILD_FOLDER OUTPUT_FOLDER; `./dev package`
# calls it.
set -euo pipefail
readonly build=$1 output=$2

# The time in the packages is the commit's, so that the same tree gives the same bytes.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
rm -rf "$build/packages"
(cd "$build" && cpack) >"$build/cpack.log" 2>&1 || {
  cat "$build/cpack.log" >&2
  exit 1
}
lintian --allow-root --fail-on error "$build"/packages/*.deb >&2
mkdir -p "$output"
rm -f "$output"/*.deb
cp "$build"/packages/*.deb "$output"
ls -s --block-size=K "$output"/*.deb
