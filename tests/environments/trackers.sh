#!/bin/sh
# Make .envs/trackers, a folder for PYTHONPATH with MLflow, W&B and polars beside an environment of verl, for
# `tests/trainers/verl/test_verl_tracking.py`. All come from the package index. If they cannot be installed, the tests
# are skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
envs=$(cd "$here/../.." && pwd)/.envs
[ -e "$envs/trackers/.done" ] && exit
"$here/verl.sh" 0.6.1 # the folder is for its Python; verl.sh waits for another one that makes it
"$here/install.sh" "$envs/verl-base/bin/python" --target "$envs/trackers" --requirement "$here/trackers-requirements.txt" || {
  echo "trackers.sh: no trackers" >&2
  exit 0
}
touch "$envs/trackers/.done"
