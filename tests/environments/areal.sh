#!/bin/bash
# Make .envs/areal, in which AReaL 1.0.4's rollouts run on a CPU, with a real SGLang server in the same environment.
#
# It is a layer over .venv (or $VENV), whose PyTorch and SGLang it uses; `make test` makes that environment first. It
# adds AReaL with its dependencies, this package with its start-up hook, and the model of the tests: 0.5 GB.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
base=$(cd "$root" && cd "${VENV:-.venv}" && pwd)
folder=$root/.envs/areal
mkdir -p "$root/.envs"
exec 9>"$root/.envs/.areal.lock" && flock 9 # several test runs may start this at once
[ -f "$base/.demo" ] || { echo "areal.sh: no SGLang in $base: run 'make $base/.demo' first" >&2; exit 2; }

install() { "$here/install.sh" "$folder/bin/python" --no-deps "$@"; }
packages_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

if [ ! -f "$folder/.made" ]; then
  "$base/bin/python" -m venv --clear "$folder"
  packages_of "$base" > "$(packages_of "$folder")/base.pth"
  install --requirement "$here/areal-requirements.txt"
  install --editable "$root"
  touch "$folder/.made"
fi
if [ ! -f "$root/.envs/areal-model/.made" ]; then
  # One thread takes seconds; on a busy machine, two threads that wait for each other take minutes.
  OMP_NUM_THREADS=1 "$folder/bin/python" -W ignore "$here/../trainers/verl/tool_model.py" "$root/.envs/areal-model"
  touch "$root/.envs/areal-model/.made"
fi
