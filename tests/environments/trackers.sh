#!/bin/sh
# Make .envs/trackers, a folder for PYTHONPATH with MLflow, W&B and polars beside an environment of verl (verl.sh), for
# `tests/trainers/verl/test_verl_tracking.py`. All come from the package index; what verl's layers have is not repeated.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$root/.envs/trackers
[ -e "$folder/.done" ] && exit
"$here/install.sh" "$root/.envs/verl-base/bin/python" --target "$folder" --requirement "$here/trackers-requirements.txt"
touch "$folder/.done"
