#!/usr/bin/env bash
# Checks the chart without a cluster: lint, render in every mode, refuse wrong values, test the alert rules.
# CHART_OUT=FOLDER keeps the rendered objects.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../../.."
chart=deploy/charts/tidewatch
tools=$(tests/tools/build.sh helm promtool)
out=${CHART_OUT:-}
if [ -z "$out" ]; then
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
fi
mkdir -p "$out"
required=(--set "image.registry=registry.example.com/tidewatch,modules.registry=registry.example.com/modules")

version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
for field in version appVersion; do
  grep -qx "$field: \"\?$version\"\?" "$chart/Chart.yaml" || { echo "Chart.yaml: $field is not $version, as in Cargo.toml"; exit 1; }
done

rendered=0
render() {
  local file=$out/$1.yaml
  shift
  "$tools/helm" lint --strict --quiet "$chart" "${required[@]}" "$@"
  "$tools/helm" template tidewatch "$chart" --namespace kcp-system "${required[@]}" "$@" >"$file"
  rendered=$((rendered + 1))
}
for issuer in built-in cert-manager; do
  render "control-plane-$issuer" --set "certManagement=$issuer"
  render "control-plane-$issuer-everything" --set "certManagement=$issuer" -f "$chart/tests/everything.yaml"
done
render single-cluster --set mode=single-cluster
render single-cluster-everything --set mode=single-cluster,agent.url= -f "$chart/tests/everything.yaml"
render single-cluster-own-rights --set mode=single-cluster,rbac.clusterAdmin=false
render nothing --set crds.install=false,rbac.create=false,serviceAccount.create=false,podDisruptionBudget.enabled=false \
  --set networkPolicy.enabled=false,modules.cacheMiB=0,service.type=ClusterIP

# Without peers, no rule opens the admin port.
for none in null '[]'; do
  if "$tools/helm" template tidewatch "$chart" "${required[@]}" --set-json "networkPolicy.adminFrom=$none" --show-only templates/networkpolicy.yaml \
    | grep -q 'port: admin'; then
    echo "the admin port is open with networkPolicy.adminFrom=$none"
    exit 1
  fi
done

# Without any one of these there is an error, not an object that the API server refuses later.
for wrong in image.registry= modules.registry= mode=both certManagement=none nonsense=1 flags.worker=1 flags.lease=5 agent.url=host:8443 \
  agent.proxy=http://user:password@proxy:3128 "agent.name=$(printf 'a%.0s' {1..64})" modules.registry=https://registry.example.com certificates.caHours=575 \
  mode=single-cluster,agent.url=https://host:8443 mode=single-cluster,certManagement=cert-manager \
  'mode=single-cluster,flags.agent-user={a}' 'mode=single-cluster,flags.route-address={a=b}'; do
  if "$tools/helm" template tidewatch "$chart" "${required[@]}" --set "$wrong" >/dev/null 2>&1; then
    echo "the chart accepts --set $wrong"
    exit 1
  fi
done

"$tools/promtool" check rules "$chart/files/alerts.yaml"
"$tools/promtool" test rules "$chart/tests/rules_test.yaml"
echo "the chart is rendered in $rendered ways"
