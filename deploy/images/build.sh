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
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
tag=${IMAGE_TAG:-$version}
commit=$(git rev-parse HEAD)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH
roots=/etc/ssl/certs/ca-certificates.crt
output=${CARGO_TARGET_DIR:-target}/images
cyclonedx=0.5.9
cache=${TIDEWATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidewatch}/cargo-cyclonedx-$cyclonedx

fail() { echo "build.sh: $*" >&2; exit 1; }
quietly() { "$@" >"$work/log" 2>&1 || fail "$1 $2: $(cat "$work/log")"; }
[ -s "$roots" ] || fail "there is no $roots: apt-get install ca-certificates"

if [ -z "${IMAGE_PROGRAMS:-}" ]; then
  command -v musl-gcc >/dev/null || fail "there is no musl-gcc, which compiles the cryptography: apt-get install musl-tools"
  [ -d "$(rustc --print target-libdir --target "$target")" ] || rustup target add "$target"
  # Messages of panics have the paths of sources: they do not name this machine's folders.
  paths="--remap-path-prefix=$PWD=. --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
  TIDEWATCH_COMMIT=$commit RUSTFLAGS="${RUSTFLAGS:-} $paths" \
    cargo build --release --locked --target "$target" "${programs[@]/#/--bin=}"
  IMAGE_PROGRAMS=${CARGO_TARGET_DIR:-target}/$target/release
fi

work=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server"
  rm -rf "$work"
  find . -path ./target -prune -o -name tidewatch-image.cdx.json -exec rm {} +
}
trap finish EXIT

# crane edits images only in a registry: its own, on the loopback address, in memory.
crane=$(tests/tools/build.sh crane)/crane
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

# cargo-cyclonedx writes into the folder of every workspace member; the paths of this checkout are removed.
sboms() {
  if [ ! -x "$cache/bin/cargo-cyclonedx" ]; then
    echo "Installing cargo-cyclonedx $cyclonedx once (about 3 min on two cores)" >&2
    cargo install cargo-cyclonedx --version "=$cyclonedx" --locked --quiet --root "$cache"
  fi
  "$cache/bin/cargo-cyclonedx" cyclonedx --quiet --quiet --format json --spec-version 1.5 --no-build-deps \
    --target "$target" --override-filename tidewatch-image.cdx
}

sboms
mkdir -p "$output"
for name in "${programs[@]}"; do
  image=127.0.0.1:$port/$name
  layer "$name"
  quietly "$crane" append --oci-empty-base --new_layer "$work/$name.tar.gz" --new_tag "$image:layer"
  quietly "$crane" mutate "$image:layer" --tag "$image:$tag" --set-platform linux/amd64 --user 65532:65532 \
    --entrypoint "/usr/bin/$name" \
    --label "org.opencontainers.image.title=$name,org.opencontainers.image.version=$version" \
    --label "org.opencontainers.image.revision=$commit,org.opencontainers.image.licenses=Apache-2.0" \
    --label "org.opencontainers.image.source=https://github.com/kyma-project/tidewatch"
  rm -rf "${output:?}/$name"
  "$crane" pull --format oci "$image:$tag" "$output/$name"
  sed "s#path+file://$PWD/#path+file:///#g" "${name#tidewatch-}/tidewatch-image.cdx.json" >"$output/$name.cdx.json"
  echo "$output/$name: $("$crane" digest "$image:$tag"), $(($(wc -c <"$work/$name.tar.gz") / 1024)) KiB"
  if [ -n "${IMAGE_REGISTRY:-}" ]; then
    "$crane" push "$output/$name" "$IMAGE_REGISTRY/$name:$tag"
  fi
done
