#!/usr/bin/env bash
# Proves the images end to end: builds them, pushes them to a CNCF registry, pulls them back, compares them with the
# Containerfile, and runs each program in a chroot: as the image's user, with a read-only root.
# It takes the variables of build.sh; IMAGE_REGISTRY is its own registry.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
facts="version=$version
revision=$(git rev-parse HEAD)
licenses=$(sed -n 's/^license = "\(.*\)"/\1/p' Cargo.toml)
source=$(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)"
output=${CARGO_TARGET_DIR:-target}/images
declare -A limit=([tidewatch-receiver]=20000000 [tidewatch-agent]=10000000)
declare -A arguments=(
  [tidewatch-receiver]="--modules registry.example.com/modules --server-name events.example.com"
  [tidewatch-agent]="--config /etc/tidewatch/config.yaml"
)
declare -A refusal=(
  [tidewatch-receiver]="no configuration for the control plane; give --kubeconfig"
  [tidewatch-agent]='configuration "/etc/tidewatch/config.yaml" cannot be read'
)

fail() { echo "check.sh: $*" >&2; exit 1; }
# same WHAT EXPECTED ACTUAL
same() { [ "$2" = "$3" ] || fail "$name: $1 is not as expected:"$'\n'"$(diff <(echo "$2") <(echo "$3"))"; }
# has WHAT TEXT PART
has() { case $2 in *"$3"*) ;; *) fail "$name: $1 has no $3: $2" ;; esac; }

# A mount namespace needs root, or a user namespace with the range of /etc/subuid.
namespace=(unshare --mount)
[ "$(id -u)" = 0 ] || namespace=(unshare --user --map-root-user --map-auto --mount)
"${namespace[@]}" true || fail "'${namespace[*]}' fails: run as root, or apt-get install util-linux uidmap"

work=$(mktemp -d)
server=
finish() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

tools=$(tests/tools/build.sh crane registry)
cat >"$work/registry.yaml" <<YAML
version: 0.1
log: {level: info, accesslog: {disabled: true}}
storage: {inmemory: {}}
http: {addr: "127.0.0.1:0"}
YAML
"$tools/registry" serve "$work/registry.yaml" >"$work/registry.log" 2>&1 &
server=$!
host=
for _ in $(seq 100); do
  host=$(sed -n 's/.*listening on \(127\.0\.0\.1:[0-9]*\).*/\1/p' "$work/registry.log")
  [ -z "$host" ] || break
  sleep 0.1
done
[ -n "$host" ] || fail "the registry does not start: $(cat "$work/registry.log")"

IMAGE_TAG=check IMAGE_REGISTRY=$host/tidewatch deploy/images/build.sh

# Runs a program of an unpacked image: inside ROOT USER PROGRAM [ARGUMENT …]
inside() {
  # shellcheck disable=SC2016  # the namespace's own shell expands these
  "${namespace[@]}" sh -euc '
    root=$1 user=$2
    shift 2
    mount --bind "$root" "$root"
    mount -o remount,bind,ro "$root"
    ! touch "$root/etc/file" 2>/dev/null || { echo "the root is writable" >&2; exit 99; }
    exec env -i "$(command -v chroot)" --groups= --userspec="$user" "$root" "$@"
  ' inside "$@"
}

for name in tidewatch-receiver tidewatch-agent; do
  image=$host/tidewatch/$name:check
  layout=$output/$name
  "$tools/crane" validate --remote "$image" >/dev/null
  digest=$("$tools/crane" digest "$image")
  has "the layout's index" "$(cat "$layout/index.json")" "\"$digest\""
  manifest=$("$tools/crane" manifest "$image") config=$("$tools/crane" config "$image")
  has "the manifest" "$manifest" '"mediaType":"application/vnd.oci.image.manifest.v1+json"'

  # The Containerfile's stage describes the same image.
  stage=$(sed -n "/^FROM scratch AS ${name#tidewatch-}\$/,/^ENTRYPOINT/p" deploy/images/Containerfile)
  user=$(sed -n 's/^USER //p' <<<"$stage")
  program=$(sed -n 's/^ENTRYPOINT \["\(.*\)"\]$/\1/p' <<<"$stage")
  has "the configuration" "$config" "\"User\":\"$user\""
  has "the configuration" "$config" "\"Entrypoint\":[\"$program\"]"
  same "the labels' keys" "$(grep -o 'org\.opencontainers\.image\.[a-z]*' <<<"$stage" | sort)" \
    "$(grep -o 'org\.opencontainers\.image\.[a-z]*' <<<"$config" | sort)"
  while IFS="=" read -r key value; do
    has "the labels" "$config" "\"org.opencontainers.image.$key\":\"$value\""
    has "the annotations" "$manifest" "\"org.opencontainers.image.$key\":\"$value\""
  done <<<"$facts"$'\n'"title=$name"
  case $manifest$config in *127.0.0.1* | *localhost*) fail "$name: the image names the registry of its builder" ;; esac

  # Two files and their folders, all of root, none writable by others: so no shell, no library, no setuid program.
  "$tools/crane" export "$image" "$work/$name.tar"
  entries=$(tar --list --verbose --numeric-owner --file "$work/$name.tar")
  same "the list of files" "$(sed -n 's/^COPY .* //p' <<<"$stage" | sort)" \
    "$(grep -v '^d' <<<"$entries" | sed 's#.* /*#/#' | sort)"
  same "modes and owners" "-rw-r--r-- 0/0"$'\n'"-rwxr-xr-x 0/0"$'\n'"drwxr-xr-x 0/0" \
    "$(cut -d' ' -f1,2 <<<"$entries" | LC_ALL=C sort -u)"

  # As a node would unpack it; then the program meets its user, its root, and a missing configuration.
  mkdir "$work/$name"
  tar --extract --same-permissions --no-same-owner --file "$work/$name.tar" --directory "$work/$name"
  chmod 0755 "$work" "$work/$name"
  same "--version" "$name $version" "$(inside "$work/$name" "$user" "$program" --version)"
  code=0
  # shellcheck disable=SC2086  # several words
  message=$(inside "$work/$name" "$user" "$program" ${arguments[$name]} 2>&1) || code=$?
  same "the exit code without a configuration" 2 "$code"
  has "the message without a configuration" "$message" "${refusal[$name]}"

  bom=$(cat "$output/$name.cdx.json")
  has "the SBOM" "$bom" '"bomFormat": "CycloneDX"'
  has "the SBOM" "$bom" "\"name\": \"$name\""
  has "the SBOM" "$bom" '"purl": "pkg:cargo/rustls@'
  case $bom in *"$PWD"*) fail "$name: the SBOM names a folder of its builder" ;; esac

  bytes=$(($(grep -o '"size":[0-9]*' <<<"$manifest" | cut -d: -f2 | paste -sd+)))
  [ "$bytes" -le "${limit[$name]}" ] || fail "$name has $bytes bytes, more than ${limit[$name]}"
  echo "$name: $bytes of ${limit[$name]} bytes; as $user: ${message##*$'\n'}"
done
