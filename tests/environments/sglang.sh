#!/bin/sh
# Make .envs/sglang-VERSION: an SGLang that is newer than the demo's, in a folder for PYTHONPATH, for `tests/trainers`.
# It runs with the packages of .venv (or $VENV).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
[ $# -gt 0 ] || set -- 0.5.23
for version in "$@"; do
  folder=$root/.envs/sglang-$version
  [ -e "$folder/.made" ] && continue
  "$here/install.sh" "$root/${VENV:-.venv}/bin/python" --no-deps --target "$folder" "sglang==$version"
  touch "$folder/.made"
done
