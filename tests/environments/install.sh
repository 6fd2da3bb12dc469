#!/bin/sh
# Install packages for a Python, as `pip install` does but in a quarter of the time: install.sh PYTHON ARGUMENTS...
#
# It uses the uv on PATH, in the environment of PYTHON or in .venv; if there is none, pip installs uv first. If uv is not
# available or fails, pip installs the packages. uv does not read pip's settings, so this script passes find-links and
# index-url to it.
#
# Install PyTorch (`torch==VERSION`) by a separate call, before packages that need it. Without an NVIDIA driver, uv takes
# the CPU build from PyTorch's own index, unless pip's settings or UV_TORCH_BACKEND name a source. With a driver, it takes
# the default build.
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
  # Processes that must not write bytecode would compile PyTorch at each start.
  [ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || export UV_COMPILE_BYTECODE=1
  backend=
  case $1 in
    torch==*) [ -n "$find_links$index${UV_TORCH_BACKEND:-}" ] || command -v nvidia-smi >/dev/null || backend=cpu ;;
  esac
  uv pip install --quiet --python "$python" ${backend:+--torch-backend "$backend"} "$@" && exit
  echo "uv could not install $*; using pip" >&2
fi
pip install --quiet "$@"
