#!/usr/bin/env bash
# Builds the real programs that the demo and the tests run (kube-apiserver, etcd,
# kwok, the CNCF registry ...) from their pinned Go modules, once, into a cache
# outside the checkout, and prints the folder that holds them.
#
#   tests/tools/build.sh [group ...]     default groups: etcd kubernetes kwok registry; and: promtool prometheus helm crane
#                                        cert-manager (only the folder cert-manager-crds: nothing is built)
#
# TIDEWATCH_CACHE      where the cache is      (default ${XDG_CACHE_HOME:-~/.cache}/tidewatch)
# KUBEBUILDER_ASSETS   a folder of ready-made programs (the convention of
#                      controller-runtime's envtest); what it has is not built. envtest's own
#                      has etcd, kube-apiserver and kubectl; with kube-controller-manager,
#                      kube-scheduler, kwok, registry and the folder kwok-stages (kwok's stage
#                      files for nodes and pods) beside them, Go is not needed.
#
# Standard output is the folder alone; what is going on is said on standard error.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cache=${TIDEWATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidewatch}/tools
kubernetes_version=v1.36.3
say() { printf '%s\n' "$*" >&2; }
if [ -n "${KUBEBUILDER_ASSETS:-}" ]; then
  # Links are made to what is in it: a relative path would lead elsewhere from there.
  KUBEBUILDER_ASSETS=$(cd "$KUBEBUILDER_ASSETS" && pwd) || { say "build.sh: KUBEBUILDER_ASSETS names no folder"; exit 2; }
fi
[ $# -gt 0 ] || set -- etcd kubernetes kwok registry

# programs GROUP: lines of "name package".
programs() {
  case $1 in
    etcd) echo "etcd go.etcd.io/etcd/server/v3" ;;
    kubernetes)
      for name in kube-apiserver kube-controller-manager kube-scheduler kubectl; do
        echo "$name k8s.io/kubernetes/cmd/$name"
      done ;;
    kwok) echo "kwok sigs.k8s.io/kwok/cmd/kwok" ;;
    registry) echo "registry github.com/distribution/distribution/v3/cmd/registry" ;;
    promtool | prometheus) echo "$1 github.com/prometheus/prometheus/cmd/$1" ;;
    helm) echo "helm helm.sh/helm/v4/cmd/helm" ;;
    crane) echo "crane github.com/google/go-containerregistry/cmd/crane" ;;
    cert-manager) ;;
    *) say "build.sh: there is no group '$1' (etcd, kubernetes, kwok, registry, promtool, prometheus, helm, crane, cert-manager)"; exit 2 ;;
  esac
}

# folder GROUP: the name of its folder of files, if it has one.
folder() {
  case $1 in
    # kwok ends at once without stage files; those of its own module make nodes and pods ready.
    kwok) echo kwok-stages ;;
    # The tests' small issuer works on cert-manager's own CRDs.
    cert-manager) echo cert-manager-crds ;;
  esac
}

# module GROUP PATH: the folder of a pinned module, downloaded.
module() {
  go mod download -C "$here/$1" "$2" >&2 &&
    go list -C "$here/$1" -m -f '{{.Dir}}' "$2"
}

# files GROUP: the files of its folder, one a line.
files() {
  local dir
  case $1 in
    kwok)
      dir=$(module kwok sigs.k8s.io/kwok)/kustomize/stage || return
      printf '%s\n' "$dir/node/fast/node-initialize.yaml" "$dir"/node/heartbeat-with-lease/*.yaml "$dir"/pod/fast/*.yaml |
        grep -v /kustomization.yaml ;;
    cert-manager)
      dir=$(module cert-manager github.com/cert-manager/cert-manager)/deploy/crds || return
      printf '%s\n' "$dir"/*.yaml ;;
  esac
}

# The folder of a group's pinned modules. Prometheus and promtool are one module, in one version.
modules() {
  if [ "$1" = prometheus ]; then echo "$here/promtool"; else echo "$here/$1"; fi
}

ldflags() {
  printf -- '-s -w'
  if [ "$1" = kubernetes ]; then
    local v=k8s.io/component-base/version
    printf -- ' -X %s.gitVersion=%s -X %s.gitMajor=1 -X %s.gitMinor=36' $v $kubernetes_version $v $v
  fi
}

# Both without the clients of every cloud's service discovery, which are most of them. Static targets stay.
tags() {
  case $1 in promtool | prometheus) printf remove_all_sd ;; esac
}

# Runs a command; where standard error is a terminal, shows that it is still going.
with_progress() {
  local label=$1 log=$2 started=$SECONDS
  shift 2
  "$@" >"$log" 2>&1 &
  local pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    if [ -t 2 ]; then
      printf '\r  %-28s %4d s ' "$label" $((SECONDS - started)) >&2
    elif [ $(((SECONDS - started) % 30)) -eq 29 ]; then
      say "  $label: still building after $((SECONDS - started)) s"
    fi
    sleep 1
  done
  if ! wait "$pid"; then
    [ -t 2 ] && say ""
    say "build.sh: $label failed; the last lines of $log:"
    tail -n 20 "$log" >&2
    exit 1
  fi
  [ -t 2 ] && printf '\r' >&2
  say "$(printf '  %-28s %4d s' "$label" $((SECONDS - started)))"
}

sum=$(command -v sha256sum || echo "shasum -a 256")
# What a program is made of: its pinned modules, its link flags and the Go that compiles it.
go_version=$(go env GOVERSION 2>/dev/null || echo none)
key_of() { { cat "$(modules "$1")/go.mod" "$(modules "$1")/go.sum"; ldflags "$1"; tags "$1"; echo "$go_version"; } | $sum | cut -c1-12; }

combined=""
for group in "$@"; do combined+="$group-$(key_of "$group") "; done
combined+=${KUBEBUILDER_ASSETS:-}
bin=$cache/bin-$(printf '%s' "$combined" | $sum | cut -c1-12)
if [ -e "$bin/.complete" ]; then echo "$bin"; exit 0; fi

mkdir -p "$bin"

need_go() {
  command -v go >/dev/null && return
  say "build.sh: $1 is not in KUBEBUILDER_ASSETS and there is no Go toolchain to make it."
  say "          Install Go 1.26 or newer, or put $1 into the folder that KUBEBUILDER_ASSETS names."
  exit 1
}

announced=""
for group in "$@"; do
  out=$cache/$group-$(key_of "$group")
  mkdir -p "$out"
  # One builder of a group at a time: `make demo` and `make test` may run side by side.
  if command -v flock >/dev/null; then
    exec 9>"$out/.lock"
    flock --nonblock 9 || { say "Waiting for another build of $group"; flock 9; }
  fi
  while read -r name package; do
    if [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -x "$KUBEBUILDER_ASSETS/$name" ]; then
      ln -sf "$KUBEBUILDER_ASSETS/$name" "$bin/$name"
      continue
    fi
    if [ ! -x "$out/$name" ]; then
      need_go "$name"
      [ -n "$announced" ] || say "Building programs, once (the control plane's take about 12 minutes on two cores):"
      announced=yes
      with_progress "$name" "$out/$name.log" env CGO_ENABLED=0 \
        go build -C "$(modules "$group")" -trimpath -tags "$(tags "$group")" -ldflags "$(ldflags "$group")" -o "$out/$name.part" "$package"
      mv "$out/$name.part" "$out/$name"
    fi
    ln -sf "$out/$name" "$bin/$name"
  done < <(programs "$group")
  folder=$(folder "$group")
  [ -n "$folder" ] || continue
  if [ -n "${KUBEBUILDER_ASSETS:-}" ] && [ -d "$KUBEBUILDER_ASSETS/$folder" ]; then
    ln -sfn "$KUBEBUILDER_ASSETS/$folder" "$bin/$folder"
    continue
  fi
  if [ ! -d "$out/$folder" ]; then
    need_go "$folder"
    found=$(files "$group")
    mkdir -p "$out/$folder.part"
    while read -r file; do cp "$file" "$out/$folder.part/"; done <<<"$found"
    chmod -R u+w "$out/$folder.part"
    mv "$out/$folder.part" "$out/$folder"
  fi
  ln -sfn "$out/$folder" "$bin/$folder"
done
touch "$bin/.complete"
echo "$bin"
