#!/usr/bin/env bash
# Runs the fuzz targets with cargo-fuzz and prints one line for each.
#
#   fuzz/run.sh [seconds] [target ...]     default: 60 s for each target
#
# Works with stable Rust: coverage comes from libFuzzer, and no sanitizer is used (there is no unsafe code of our own).
# The committed corpora are read, never written: what is found goes to target/fuzz-work/<target>/, where
# `corpus` is kept for the next run and `crashes` holds inputs that broke a promise.
#
# TIDEWATCH_CACHE   where cargo-fuzz is installed   (default ${XDG_CACHE_HOME:-~/.cache}/tidewatch)
set -euo pipefail

version=0.13.2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/.."
cache=${TIDEWATCH_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/tidewatch}/cargo-fuzz-$version
output=${CARGO_TARGET_DIR:-target}
work=$output/fuzz-work
seconds=${1:-60}
[ $# -eq 0 ] || shift
targets=("$@")
[ $# -gt 0 ] || for file in "$here"/fuzz_targets/*.rs; do targets+=("$(basename "$file" .rs)"); done
mkdir -p "$work"

if ! [ -x "$cache/bin/cargo-fuzz" ]; then
  echo "installing cargo-fuzz $version into $cache" >&2
  cargo install cargo-fuzz --version "=$version" --locked --quiet --root "$cache"
fi
export PATH=$cache/bin:$PATH
# Thin LTO of the release profile would cost minutes for each target.
export CARGO_PROFILE_RELEASE_LTO=off
options=(--sanitizer none --features libfuzzer --no-cfg-fuzzing --codegen-units 16 --target-dir "$output/fuzz")

echo "building ${#targets[@]} targets (log: $work/build.log)" >&2
if ! cargo fuzz build "${options[@]}" >"$work/build.log" 2>&1; then
  tail -n 20 "$work/build.log" >&2
  exit 1
fi

# statistic LOG NAME: one of libFuzzer's final numbers.
statistic() { awk -v name="stat::$2:" '$1 == name { value = $2 } END { print value + 0 }' "$1"; }

failed=0
for target in "${targets[@]}"; do
  folder=$work/$target
  mkdir -p "$folder/corpus" "$folder/crashes"
  log=$folder/log
  # An input that takes 10 s or 1 GiB breaks a promise too.
  cargo fuzz run "${options[@]}" "$target" "$folder/corpus" "fuzz/corpus/$target" -- \
    -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
    -artifact_prefix="$folder/crashes/" >"$log" 2>&1 || failed=1
  crashes=$(find "$folder/crashes" -type f | wc -l)
  printf 'fuzz %-20s seconds=%s executions=%s new_units=%s peak_rss_mb=%s crashes=%s\n' "$target" "$seconds" \
    "$(statistic "$log" number_of_executed_units)" "$(statistic "$log" new_units_added)" \
    "$(statistic "$log" peak_rss_mb)" "$crashes"
  [ "$crashes" -eq 0 ] || failed=1
done
if [ "$failed" -ne 0 ]; then
  echo "something failed: see $work/<target>/log and $work/<target>/crashes, and docs/develop/fuzzing.md for what to do" >&2
  exit 1
fi
