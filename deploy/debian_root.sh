#!/usr/bin/env bash
# Makes a tarball of a bare Debian: apt and the essential packages, as in Debian's slim images, without manuals and
# translations. Its packages come from where mmdebstrap takes them, or from Debian's archive of SNAPSHOT, a time such as
# 20261101T000000Z; then apt in this Debian takes its packages from there, too. Needs root.
# usage: [SNAPSHOT=TIME] debian_root.sh SUITE TARBALL [mmdebstrap's options]
set -euo pipefail
suite=$1 tarball=$2
shift 2
sources=()
if [[ -n ${SNAPSHOT:-} ]]; then
  archive=http://snapshot.debian.org/archive
  sources=("deb $archive/debian/$SNAPSHOT $suite main" "deb $archive/debian/$SNAPSHOT $suite-updates main"
    "deb $archive/debian-security/$SNAPSHOT $suite-security main")
  # An archive's lists are past the day until which they are valid. Their signatures are checked.
  set -- --aptopt='Acquire::Check-Valid-Until "false"' "$@"
fi
exec mmdebstrap --quiet --variant=minbase \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  "$@" "$suite" "$tarball" "${sources[@]}"
