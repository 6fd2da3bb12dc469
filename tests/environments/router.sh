#!/bin/sh
# Make .envs/router-VERSION: routers of SGLang's, each in a folder for PYTHONPATH, for `tests/test_profile*.py`.
# 0.1.9 has /list_workers alone, 0.3.2 /workers alone. One that cannot be had is left out: its tests are skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
[ $# -gt 0 ] || set -- 0.1.9 0.3.2
for version in "$@"; do
  folder=$root/.envs/router-$version
  [ -e "$folder/.done" ] && continue
  # Without dependencies: the virtual environment has what a router needs, and SGLang pins other versions of it.
  "$here/install.sh" "$root/${VENV:-.venv}/bin/python" --no-deps --target "$folder" "sglang-router==$version" || continue
  touch "$folder/.done"
done
