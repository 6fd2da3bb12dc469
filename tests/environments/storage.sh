#!/bin/sh
# Make .envs/storage: a virtual environment with fsspec, s3fs and a real S3 server (moto), for `tests/on_storage`.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$root/.envs/storage
[ -f "$folder/.made" ] && exit
mkdir -p "$root/.envs"
"${PYTHON:-python3}" -m venv "$folder"
"$here/install.sh" "$folder/bin/python" "moto[server,s3]>=5" pytest pytest-xdist --editable "$root[cloud]"
touch "$folder/.made"
