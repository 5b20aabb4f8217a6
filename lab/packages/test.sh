#!/bin/bash
# Checks the packages in target/package and the files in deploy/: `make test-packages`, as root.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

package=target/package
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
passed=0
failed=0

# check WHAT COMMAND…: runs a check, and shows its output if it fails.
check() {
  local what=$1
  shift
  if "$@" >"$scratch/output" 2>&1; then
    echo "ok      $what"
    passed=$((passed + 1))
  else
    echo "FAILED  $what"
    sed 's/^/        /' "$scratch/output"
    failed=$((failed + 1))
  fi
}

# === the files ===

checksums() {
  (cd "$package" && sha256sum --check --strict SHA256SUMS)
}

# Static: no interpreter, and no library.
is_static() {
  file "$package/image/tidegate" | tee /dev/stderr | grep -Eq 'static(ally|-pie) linked' &&
    ! readelf --dynamic "$package/image/tidegate" | grep NEEDED
}

bill_of_materials() {
  PYTHONPATH=target/cyclonedx python3 - "$package/tidegate-$version.cdx.json" <<'PYTHON'
import json, sys
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = open(sys.argv[1]).read()
wrong = JsonStrictValidator(SchemaVersion.V1_5).validate_str(text)
names = {component["name"] for component in json.loads(text)["components"]}
assert wrong is None, wrong
assert {"rustls", "tokio", "tidegate-core"} <= names, names
PYTHON
}

# docs/install.md names files with their version.
names_the_files() {
  local name
  for name in "$package"/*.deb "$package"/*.tar.gz; do
    grep -qF "$(basename "$name")" docs/install.md || { echo "docs/install.md does not name $name"; return 1; }
  done
}

# === the unit ===

# Where the unit says it is, the program is.
unit_is_valid() {
  sed "s#/usr/bin/tidegate#$PWD/$package/image/tidegate#" deploy/tidegate.service >"$scratch/tidegate.service"
  systemd-analyze verify --man=no "$scratch/tidegate.service"
}

unit_exposes_little() {
  systemd-analyze security --offline=true --threshold=15 deploy/tidegate.service
}

# === the container ===

compose_file() {
  docker-compose --file deploy/compose.yaml config
}

# === main ===

check "the checksums fit" checksums
check "the program of the tarball is static" is_static
check "the bill of materials follows its schema" bill_of_materials
check "docs/install.md names these files" names_the_files
check "the man pages have no mistakes" mandoc -T lint -W error "$package"/man/*.1
check "lintian has no complaint about the .deb" lintian --allow-root --fail-on error,warning "$package"/*.deb
check "systemd accepts the unit" unit_is_valid
check "the exposure of the unit is at most 1.5" unit_exposes_little
check "hadolint has no complaint about the Dockerfile" target/hadolint/bin/hadolint deploy/Dockerfile
check "the compose file is valid" compose_file
check "the .deb installs, answers, upgrades, stops and goes" lab/packages/machine.sh /given/packages/deb.sh
check "the .deb works without systemd" lab/packages/machine.sh /given/packages/without_systemd.sh
check "the tarball answers, and finds stores by name" lab/packages/machine.sh /given/packages/tarball.sh
check "the container image answers" lab/packages/machine.sh /given/packages/image.sh
echo
echo "$passed passed, $failed failed"
((failed == 0))
