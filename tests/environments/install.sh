#!/bin/sh
# Install packages for a Python, as `pip install` does but in a quarter of the time: install.sh PYTHON ARGUMENTS...
#
# uv installs them: the one on PATH, else one that pip puts into the environment of PYTHON. pip installs them where uv
# cannot be had, or fails: it does not read pip's settings, of which only the two below are handed on.
# PyTorch is asked for alone (`torch==VERSION`), before what needs it. With an NVIDIA driver, or where pip's settings or
# UV_TORCH_BACKEND say where to look, that gives the build that is found there; without, PyTorch's CPU build.
set -eu
python=$1
shift
bin=$(dirname "$python")
pip() { "$python" -m pip --quiet --disable-pip-version-check "$@"; }
setting() { pip config get "$1" 2>/dev/null || true; }

uv=$(command -v "$bin/uv" || command -v uv || { pip install uv && echo "$bin/uv"; } || true)
if [ -n "$uv" ]; then
  export UV_FIND_LINKS="${UV_FIND_LINKS-$(setting global.find-links)}" UV_DEFAULT_INDEX="${UV_DEFAULT_INDEX-$(setting global.index-url)}"
  [ -n "$UV_DEFAULT_INDEX" ] || unset UV_DEFAULT_INDEX
  # Processes that may not write bytecode would compile PyTorch whenever they start.
  [ -z "${PYTHONDONTWRITEBYTECODE:-}" ] || export UV_COMPILE_BYTECODE=1
  install() { "$uv" pip install --quiet --python "$python" "$@"; }
  case $* in
    torch==*)
      if ! command -v nvidia-smi >/dev/null && [ -z "$UV_FIND_LINKS${UV_DEFAULT_INDEX:-}${UV_TORCH_BACKEND:-}" ]; then
        install --torch-backend cpu "$@" && exit
      fi
      ;;
  esac
  install "$@" && exit
  echo "uv could not install $*: pip installs it" >&2
fi
pip install "$@"
