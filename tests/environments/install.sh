#!/bin/sh
# Install packages for a Python, as `pip install` does but in a quarter of the time: install.sh PYTHON ARGUMENTS...
#
# uv does it: the one on PATH, in the environment of PYTHON or in .venv, or one that pip puts there first. Where uv cannot
# be had or fails, pip does it. uv does not read pip's settings, so find-links and index-url are handed on to it.
#
# Ask for PyTorch alone (`torch==VERSION`), and before what needs it. Without an NVIDIA driver, uv takes the CPU build from
# PyTorch's own index, unless pip's settings or UV_TORCH_BACKEND name a place. With a driver, it takes the usual build.
set -eu
python=$1
shift
PATH=$PATH:$(dirname "$python"):$(dirname "$0")/../../${VENV:-.venv}/bin
pip() { "$python" -m pip --disable-pip-version-check "$@"; }
setting() { echo "$settings" | sed -n "s/^[^=]*\.$1='\(.*\)'$/\1/p" | tail -n 1; }

command -v uv >/dev/null || pip install --quiet uv || true
if command -v uv >/dev/null; then
  settings=$(pip config list || true)
  find_links=${UV_FIND_LINKS-$(setting find-links | tr ' ' ',')}
  index=${UV_DEFAULT_INDEX-$(setting index-url)}
  [ -z "$find_links" ] || export UV_FIND_LINKS="$find_links"
  [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
  # Processes that may not write bytecode would compile PyTorch whenever they start.
  [ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || export UV_COMPILE_BYTECODE=1
  backend=
  case $1 in
    torch==*) [ -n "$find_links$index${UV_TORCH_BACKEND:-}" ] || command -v nvidia-smi >/dev/null || backend=cpu ;;
  esac
  uv pip install --quiet --python "$python" ${backend:+--torch-backend "$backend"} "$@" && exit
  echo "uv did not install $*: pip does" >&2
fi
pip install --quiet "$@"
