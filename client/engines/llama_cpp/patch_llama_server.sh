#!/usr/bin/env bash
# Puts Sortition into the sources of llama-server: patch_llama_server.sh LLAMA_CPP_SOURCES. They must be those in
# llama-cpp-python 0.3.36, because the patch has line numbers only. A server that is built from them samples as before
# until SORTITION_LLAMA is set, and then loads libsortition_llama_server.so (or what SORTITION_LLAMA_LIBRARY names).
set -euo pipefail
readonly sources=${1:?the folder of llama.cpp\'s sources}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly here

cd "$sources"
if ! sha256sum --quiet --check >&2; then
  echo 'patch_llama_server: these are other sources, or patched ones' >&2
  exit 1
fi <<'SUMS'
9c3830699151ed53bbdaf885f9c72e9a71b0e163d71dbaaa977c673ac695633b  common/sampling.cpp
8edbf968514b1106b64a823c411946cd816f8fab8cfc7cca873f48acdb9c64ea  tools/server/server-context.cpp
SUMS
mkdir -p common/sortition
cp "$here"/llama_server.h "$here"/llama_server_hook.{h,inc} common/sortition
patch --quiet --strip=1 <"$here/llama_server.patch"
