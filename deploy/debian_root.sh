#!/usr/bin/env bash
# Makes a tarball of a bare Debian: apt and the essential packages, as in Debian's slim images, without manuals and
# translations. Its packages come from where mmdebstrap takes them. Needs root.
# usage: debian_root.sh SUITE TARBALL [mmdebstrap's options]
set -euo pipefail
suite=$1 tarball=$2
shift 2
exec mmdebstrap --quiet --variant=minbase \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  "$@" "$suite" "$tarball"
