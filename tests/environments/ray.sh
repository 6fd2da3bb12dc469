#!/bin/sh
# Make .envs/ray: a virtual environment with Ray, for `make test-ray`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$root/.envs/ray
[ -f "$folder/.made" ] && exit
mkdir -p "$root/.envs"
"${PYTHON:-python3}" -m venv "$folder"
"$here/install.sh" "$folder/bin/python" "ray>=2.9" pytest pytest-xdist --editable "$root[report,sql]"
touch "$folder/.made"
