#!/bin/sh
# Make .envs/router-VERSION: routers of SGLang's, each in a folder for PYTHONPATH, for `tests/test_profile*.py`.
# 0.1.9 has /list_workers alone, 0.3.2 /workers alone. Run from the repository's root: tests/environments/router.sh
set -eu
PYTHON=${PYTHON:-.venv/bin/python}
[ $# -gt 0 ] || set -- 0.1.9 0.3.2
for version in "$@"; do
  folder=.envs/router-$version
  [ -e "$folder/.done" ] && continue
  # Without dependencies: the virtual environment has what a router needs, and SGLang pins other versions of it.
  "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$folder" "sglang-router==$version"
  touch "$folder/.done"
done
