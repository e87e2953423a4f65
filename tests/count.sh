#!/usr/bin/env bash
# Says how many end-to-end tests ran on which backend: tests/count.sh fake|real
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
list=$(cargo test --quiet --workspace --locked --test e2e -- --list --format terse)
all=$(grep -c ': test$' <<<"$list")
real=$(grep -c '_on_real_control_planes: test$' <<<"$list" || true)
case $1 in
  fake) echo "End-to-end: $((all - real)) tests ran on the fake API server; $real more need real control planes (make e2e)." ;;
  real) echo "End-to-end: $all tests ran on real control planes, $real of which only they can run." ;;
  *) echo "usage: tests/count.sh fake|real" >&2; exit 2 ;;
esac
