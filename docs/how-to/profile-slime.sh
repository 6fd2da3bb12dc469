#!/usr/bin/env bash
# Profile the engines of a slime job that does not train: start it with a rollout that waits, send requests, record,
# end the job, and say what the kernels did.
#
#   profile-slime.sh FOLDER python train.py ...     # your command, with all of its own arguments
#
# FOLDER gets train.log and traces/. The engines must write to FOLDER, so it lies on a disk that they share.
# REQUESTS (8) probe requests a worker, STEPS (20) forward steps, PATIENCE_SEC (1800) until the engines are up.
set -euo pipefail
[ $# -ge 2 ] || { sed -n '2,8s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
folder=$(cd "$1" && pwd)
shift
log=$folder/train.log

"$@" --rollout-function-path sglang_instrument.rollout.sleep >"$log" 2>&1 &
job=$!
# However this script ends, the job ends, too: the waiting rollout when its wake file is touched, else by a signal.
end_job() {
  touch "${wake:-/dev/null}" 2>/dev/null || true
  for _ in $(seq 30); do
    kill -0 $job 2>/dev/null || return 0
    sleep 1
  done
  kill $job 2>/dev/null || true
}
trap end_job EXIT

echo "waiting for the engines; the job's log: $log"
waited=0
until said=$(grep -o 'rollout.sleep: rollout .* workers: .*' "$log" | tail -n 1) && [ -n "$said" ]; do
  kill -0 $job 2>/dev/null || { tail -n 20 "$log" >&2; echo "the job ended before its engines were up" >&2; exit 1; }
  [ $waited -lt "${PATIENCE_SEC:-1800}" ] || { echo "no engine after $waited s: $log" >&2; exit 1; }
  sleep 2
  waited=$((waited + 2))
done
wake=${said##*to end: touch }
router=$(sed 's/.*--router-url \([^ ;]*\).*/\1/' <<<"$said")

sglang-instrument profile capture --router-url "$router" --output-dir "$folder/traces" \
  --requests "${REQUESTS:-8}" --num-steps "${STEPS:-20}"
end_job
sglang-instrument trace "$folder/traces"
