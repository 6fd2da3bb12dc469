#!/bin/bash
# Make .envs/verl-server, in which verl 0.9.1's server mode runs on a CPU: agent loops, LLM servers, SGLang under Ray.
#
# It is a layer over .venv (or $VENV), whose PyTorch it uses; `make test` makes that environment first. It adds a
# version of sglang that works with verl 0.9.1, Ray, verl, this package with its start-up hook, and the model of the
# tests.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
base=$(cd "$root" && cd "${VENV:-.venv}" && pwd)
folder=$root/.envs/verl-server
mkdir -p "$root/.envs"
exec 9>"$root/.envs/.verl-server.lock" && flock 9 # several test runs may start this at once
[ -f "$base/.demo" ] || { echo "verl_server.sh: no PyTorch in $base: run 'make $base/.demo' first" >&2; exit 2; }

install() { "$here/install.sh" "$folder/bin/python" --no-deps "$@"; }
packages_of() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

if [ ! -f "$folder/.made" ]; then
  "$base/bin/python" -m venv "$folder"
  packages_of "$base" > "$(packages_of "$folder")/base.pth"
  install --requirement "$here/verl-server-requirements.txt"
  install --editable "$root"
  touch "$folder/.made"
fi
if [ ! -f "$root/.envs/verl-server-model/.made" ]; then
  # One thread takes seconds; on a busy machine, two threads that wait for each other take minutes.
  OMP_NUM_THREADS=1 "$folder/bin/python" -W ignore "$here/../trainers/verl/tool_model.py" "$root/.envs/verl-server-model"
  touch "$root/.envs/verl-server-model/.made"
fi
