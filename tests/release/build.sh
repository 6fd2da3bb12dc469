#!/bin/bash
# Make an sdist, and from it a compiled manylinux wheel for each Python: build.sh DIST PYTHON...
#
# DIST holds nothing else afterwards. A PYTHON that is not installed, or is no Python 3.10 to 3.14, is left out and
# named. The wheels run on the systems that auditwheel finds for this machine's glibc, and newer ones.
set -euo pipefail
dist=$1
shift
root=$(cd "$(dirname "$0")/../.." && pwd)
tool=$root/${VENV:-.venv}/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf "$dist" && mkdir -p "$dist"

"$tool" -m build --sdist --outdir "$dist" "$root" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
made=0
for python in "$@"; do
  if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
    echo "left out: $python is not installed, or is no Python 3.10 to 3.14" >&2
    continue
  fi
  # -g0 and -O2 come from hatch_build.py; --no-deps: dependencies have wheels of their own.
  SGLANG_INSTRUMENT_NATIVE=1 "$python" -m pip wheel --disable-pip-version-check --quiet --no-deps \
    --wheel-dir "$work/raw" "$dist"/*.tar.gz
  PATH=$(dirname "$tool"):$PATH "$tool" -m auditwheel repair --strip --wheel-dir "$dist" "$work"/raw/*.whl \
    >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
  rm "$work"/raw/*.whl
  made=$((made + 1))
done
[ "$made" -gt 0 ] || { echo "no wheel was made" >&2; exit 2; }
ls -l "$dist"
