#!/usr/bin/env bash
# Builds the images of receiver and agent without a container daemon: static programs in one layer each, as OCI layouts
# in target/images/, with a CycloneDX SBOM beside each. The same sources and tools give the same digests.
#
# IMAGE_REGISTRY     HOST[:PORT][/PATH] to which the images are pushed   (default: they are not pushed)
# IMAGE_TAG          tag of the pushed images                            (default: the workspace's version)
# IMAGE_PROGRAMS     folder of ready-made static programs                (default: cargo builds them; needs musl-gcc)
# SOURCE_DATE_EPOCH  time of files and SBOMs                             (default: that of the last commit)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

programs=(tidewatch-receiver tidewatch-agent)
target=x86_64-unknown-linux-musl
roots=/etc/ssl/certs/ca-certificates.crt
cyclonedx=0.5.9
cache=${TIDEWATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidewatch}/cargo-cyclonedx-$cyclonedx
output=${CARGO_TARGET_DIR:-target}/images

say() { printf '%s\n' "$*" >&2; }
fail() { say "build.sh: $*"; exit 1; }
step() { say "[$((SECONDS / 60)) min $((SECONDS % 60)) s] $*"; }
# A registry client reports each blob: only its failures are of interest.
quietly() { "$@" >"$work/log" 2>&1 || fail "$1 $2: $(cat "$work/log")"; }

# All missing tools at once, before a build of many minutes.
missing=
need() { "${@:2}" >/dev/null 2>&1 || missing+="  $1"$'\n'; }
need "git: apt-get install git" git --version
need "cargo and rustc: https://rustup.rs" cargo --version
need "readelf: apt-get install binutils" readelf --version
need "GNU tar and gzip: apt-get install tar gzip" tar --sort=name --create --gzip --file=/dev/null --files-from=/dev/null
need "$roots: apt-get install ca-certificates" test -s "$roots"
[ -x "${KUBEBUILDER_ASSETS:-}/crane" ] || need "Go 1.26 or newer, which builds crane: https://go.dev/dl" go version
if [ -z "${IMAGE_PROGRAMS:-}" ]; then
  need "musl-gcc, the C compiler of static programs: apt-get install musl-tools" musl-gcc --version
  need "Rust's library for static programs: rustup target add $target" \
    sh -c "test -d \"\$(rustc --print target-libdir --target $target)\" || rustup --version"
fi
[ -z "$missing" ] || fail "these are missing:"$'\n'"$missing"

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
tag=${IMAGE_TAG:-$version}
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
[ -z "$(git status --porcelain)" ] || say "build.sh: warning: the images are labelled $commit, but the checkout has changes"

work=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
  find . -path ./target -prune -o -name tidewatch-image.cdx.json -exec rm {} +
}
trap finish EXIT

crane=$(tests/tools/build.sh crane)/crane
if [ ! -x "$cache/bin/cargo-cyclonedx" ]; then
  step "Installing cargo-cyclonedx $cyclonedx, once (about 3 min on two cores)"
  CARGO_TARGET_DIR=$work/cyclonedx cargo install cargo-cyclonedx --version "=$cyclonedx" --locked --quiet --root "$cache"
fi

if [ -z "${IMAGE_PROGRAMS:-}" ]; then
  step "Building static programs (about 15 min on two cores, first time)"
  [ -d "$(rustc --print target-libdir --target "$target")" ] || rustup target add "$target"
  # Messages of panics have the paths of sources: they do not name this machine's folders.
  paths="--remap-path-prefix=$PWD=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
  # The commit's time would compile all C code anew for each commit; a constant keeps the compilers' output the same.
  SOURCE_DATE_EPOCH=0 TIDEWATCH_COMMIT=$commit RUSTFLAGS="${RUSTFLAGS:-} $paths" \
    cargo build --release --locked --target "$target" "${programs[@]/#/--bin=}"
  IMAGE_PROGRAMS=${CARGO_TARGET_DIR:-target}/$target/release
fi

# crane edits images only in a registry: its own, on the loopback address, in memory.
: >"$work/registry.log"
"$crane" registry serve --address 127.0.0.1:0 2>>"$work/registry.log" &
server=$!
port=
for _ in $(seq 50); do
  port=$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry.log")
  [ -z "$port" ] || break
  sleep 0.1
done
[ -n "$port" ] || fail "crane's registry does not start: $(cat "$work/registry.log")"

# The layer: one program and the root certificates. Names are sorted; times, owners and modes are fixed.
layer() {
  local name=$1 root=$work/$1
  [ -x "$IMAGE_PROGRAMS/$name" ] || fail "$IMAGE_PROGRAMS has no program $name"
  case $(readelf --program-headers "$IMAGE_PROGRAMS/$name") in
    *INTERP*) fail "$name is not static: an image without libraries cannot start it" ;;
  esac
  (umask 022; mkdir -p "$root/usr/bin" "$root/etc/ssl/certs")
  install -m 0755 "$IMAGE_PROGRAMS/$name" "$root/usr/bin/$name"
  install -m 0644 "$roots" "$root$roots"
  tar --create --directory "$root" --sort=name --format=ustar --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner etc usr | gzip -9 --no-name >"$work/$name.tar.gz"
}

# The same facts as annotations of the manifest, for registries, and as labels of the configuration, for engines.
facts() {
  local key=org.opencontainers.image
  echo "$key.title=$1,$key.version=$version,$key.revision=$commit,$key.licenses=$license,$key.source=$repository"
}
license=$(sed -n 's/^license = "\(.*\)"/\1/p' Cargo.toml)
repository=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)

step "Listing dependencies"
# cargo-cyclonedx writes into the folder of every workspace member; the paths of this checkout are removed.
"$cache/bin/cargo-cyclonedx" cyclonedx --quiet --quiet --format json --spec-version 1.5 --no-build-deps \
  --target "$target" --override-filename tidewatch-image.cdx

mkdir -p "$output"
for name in "${programs[@]}"; do
  step "Packing $name"
  image=127.0.0.1:$port/$name
  layer "$name"
  quietly "$crane" append --oci-empty-base --new_layer "$work/$name.tar.gz" --new_tag "$image:layer"
  quietly "$crane" mutate "$image:layer" --tag "$image:$tag" --set-platform linux/amd64 --user 65532:65532 \
    --entrypoint "/usr/bin/$name" --label "$(facts "$name")" --annotation "$(facts "$name")"
  rm -rf "${output:?}/$name"
  quietly "$crane" pull --format oci "$image:$tag" "$output/$name"
  sed "s#path+file://$PWD/#path+file:///#g" "${name#tidewatch-}/tidewatch-image.cdx.json" >"$output/$name.cdx.json"
  echo "$output/$name: $("$crane" digest "$image:$tag"), $(wc -c <"$work/$name.tar.gz") bytes"
  if [ -n "${IMAGE_REGISTRY:-}" ]; then
    step "Pushing $IMAGE_REGISTRY/$name:$tag"
    quietly "$crane" push "$output/$name" "$IMAGE_REGISTRY/$name:$tag"
  fi
done
