#!/usr/bin/env bash
# Run tests many times in a row, to find those that fail by chance: tests/in_a_row.sh [-n RUNS] [-b BUSY] [COMMAND...]
#
#   tests/in_a_row.sh -n 10 make test     # the whole suite, ten times
#   tests/in_a_row.sh -n 2 -b 4 make test # twice, beside four processes that keep cores busy
#   tests/in_a_row.sh -n 50               # the files whose tests draw, wait or time, but start no engine
#
# Each run prints a line; the output of all stays in build/in_a_row/. The exit code is 1 if any run failed.
set -uo pipefail
cd "$(dirname "$0")/.."
runs=50 busy=0
while getopts n:b: option; do
  case $option in
    n) runs=$OPTARG ;;
    b) busy=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
if [ $# = 0 ]; then
  chancy='hypothesis|random|sleep|monotonic|perf_counter|Thread|Popen|asyncio'
  elsewhere='/(engine|gpu|trainers|on_[a-z]*|release|house)/'
  mapfile -t files < <(grep -lE "$chancy" -r tests --include='test_*.py' | grep -vE "$elsewhere" | xargs grep -LE 'mark\.engine' | sort)
  set -- "${VENV:-.venv}/bin/python" -m pytest -q --numprocesses logical --dist loadgroup --no-loadscope-reorder "${files[@]}"
fi
output=build/in_a_row
mkdir -p "$output"
trap 'kill $(jobs -p) 2>/dev/null' EXIT
for _ in $(seq "$busy"); do
  while :; do :; done &
done
failed=0
for run in $(seq "$runs"); do
  begun=$SECONDS
  "$@" >"$output/$run.txt" 2>&1
  status=$?
  [ "$status" = 0 ] || failed=$((failed + 1))
  printf 'run %s of %s: exit code %s, %s s: %s\n' "$run" "$runs" "$status" $((SECONDS - begun)) \
    "$(grep -E '(passed|failed|error).* in ' "$output/$run.txt" | sed 's/=//g' | xargs)"
done
echo "$failed of $runs failed"
[ "$failed" = 0 ]
