#!/bin/bash
# Builds the packages: `make package`.
#
#   target/package/
#     tidegate_0.1.0-1_amd64.deb           for Debian and Ubuntu, by cargo-deb; its contents are listed in crates/server/Cargo.toml
#     tidegate-0.1.0-x86_64-linux.tar.gz   a program without libraries, for every Linux
#     tidegate-0.1.0.cdx.json              bill of materials (CycloneDX): the libraries in the program, their versions and licences
#     SHA256SUMS                           checksums of these files
#     image/                               the build context of the container image
#     man/, completions/                   parts of the first two
set -euo pipefail
cd "$(dirname "$0")/.."

tools=$PWD/target/tools/bin
package=target/package
release=${CARGO_TARGET_DIR:-target}/release
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)
machine=$(uname -m)
tarball=tidegate-$version-$machine-linux
# Packages of one commit are equal: every file has the time of the commit.
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH

main() {
  rm -rf "$package"
  mkdir -p "$package"/{man,completions,image/data}
  build
  describe
  bill_of_materials
  static_tarball
  image
  # Its warnings are about files of target/package, which are not built by cargo.
  "$tools/cargo-deb" -p tidegate-server --no-build --locked --quiet --output "$package"
  (cd "$package" && sha256sum -- *.deb *.tar.gz *.cdx.json >SHA256SUMS)
  echo "The packages are in $package:"
  ls -lh "$package" | awk 'NR > 1 && $1 !~ /^d/ { print "  " $5 "\t" $9 }'
}

# Both programs consist of the same libraries; they differ in the last step, which links them. The second one stays in release.
build() {
  cargo rustc --locked --release -p tidegate-server --bin tidegate -- -C target-feature=+crt-static
  strip --output-file="$package/image/tidegate" "$release/tidegate"
  cargo build --locked --release -p tidegate-server
}

# The pages and scripts that the program writes about itself.
describe() {
  "$release/tidegate" man --dir "$package/man"
  "$release/tidegate" completions bash >"$package/completions/tidegate.bash"
  "$release/tidegate" completions zsh >"$package/completions/_tidegate"
  "$release/tidegate" completions fish >"$package/completions/tidegate.fish"
}

# cargo-cyclonedx writes a file beside the manifest of every crate, with the path of this folder in the names of our own crates.
bill_of_materials() {
  trap 'git ls-files "*Cargo.toml" | sed "s/Cargo.toml$/tidegate-bill.json/" | xargs rm -f' EXIT
  "$tools/cargo-cyclonedx" cyclonedx --quiet --manifest-path crates/server/Cargo.toml --format json --spec-version 1.5 \
    --no-build-deps --override-filename tidegate-bill
  sed "s#file://$PWD/#file:///#g" crates/server/tidegate-bill.json >"$package/tidegate-$version.cdx.json"
}

static_tarball() {
  local folder=$package/$tarball
  mkdir "$folder"
  cp -r "$package"/{image/tidegate,man,completions} docs/install.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$folder"
  cp deploy/{tidegate.service,tidegate.yaml,policy.yaml} "$folder"
  tar --create --gzip --file "$folder.tar.gz" --directory "$package" --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner --mode='u=rwX,go=rX' "$tarball"
  rm -r "$folder"
}

image() {
  cp deploy/Dockerfile deploy/policy.yaml "$package/image"
}

main
