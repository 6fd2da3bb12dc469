#!/bin/sh
# Make .envs/router-VERSION: routers of SGLang, each in a folder for PYTHONPATH, for `tests/engine`.
# 0.1.9 has only /list_workers, 0.3.2 only /workers. A router that cannot be installed is left out; its tests are skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
[ $# -gt 0 ] || set -- 0.1.9 0.3.2
for version in "$@"; do
  folder=$root/.envs/router-$version
  [ -e "$folder/.done" ] && continue
  # Without dependencies: the virtual environment has them, in the versions that SGLang pins.
  "$here/install.sh" "$root/${VENV:-.venv}/bin/python" --no-deps --target "$folder" "sglang-router==$version" || continue
  touch "$folder/.done"
done
