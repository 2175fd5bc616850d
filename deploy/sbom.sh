#!/bin/sh
# Prints the software bill of materials (SPDX 2.3, JSON) of the Debian system it runs on, with sortitiond in it.
#
#   sbom.sh VERSION CREATED        CREATED as 2026-01-31T12:00:00Z
set -eu
version=$1
created=$2

# One package a line: SPDX identifier, name, version, architecture. An identifier has no character but letters, digits,
# "." and "-".
packages() {
  # shellcheck disable=SC2016 # dpkg-query fills these in
  dpkg-query --show --showformat='${db:Status-Abbrev} ${Package} ${Version} ${Architecture}\n' |
    awk '$1 == "ii" { id = $2 "-" $4; gsub(/\+/, "plus", id); gsub(/[^A-Za-z0-9.-]/, "-", id); print id, $2, $3, $4 }'
}

# A package URL encodes every character except letters, digits and -._~
encoded() { printf '%s' "$1" | sed 's/%/%25/g; s/+/%2B/g; s/:/%3A/g; s/~/~/g'; }

cat <<TEXT
{
"spdxVersion": "SPDX-2.3",
"dataLicense": "CC0-1.0",
"SPDXID": "SPDXRef-DOCUMENT",
"name": "sortition-$version",
"documentNamespace": "urn:sortition:image:$version:$created",
"creationInfo": {"created": "$created", "creators": ["Tool: sortition-sbom"]},
"packages": [
{"SPDXID": "SPDXRef-sortitiond", "name": "sortitiond", "versionInfo": "$version", "downloadLocation": "NOASSERTION",
 "filesAnalyzed": false, "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
 "copyrightText": "NOASSERTION", "primaryPackagePurpose": "APPLICATION"}
TEXT
packages | while read -r id name debian architecture; do
  cat <<TEXT
,{"SPDXID": "SPDXRef-$id", "name": "$name", "versionInfo": "$debian", "downloadLocation": "NOASSERTION",
 "filesAnalyzed": false, "licenseConcluded": "NOASSERTION", "licenseDeclared": "NOASSERTION",
 "copyrightText": "NOASSERTION", "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
 "referenceLocator": "pkg:deb/debian/$(encoded "$name")@$(encoded "$debian")?arch=$architecture"}]}
TEXT
done
cat <<'TEXT'
],
"relationships": [
{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-sortitiond"}
TEXT
packages | while read -r id _; do
  printf ',{"spdxElementId": "SPDXRef-sortitiond", "relationshipType": "DEPENDS_ON",\n'
  printf ' "relatedSpdxElement": "SPDXRef-%s"}\n' "$id"
done
printf ']\n}\n'
