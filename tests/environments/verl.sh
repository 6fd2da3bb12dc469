#!/bin/bash
# Make .envs/verl-VERSION, in which the rollout of this version of verl runs on a CPU: verl.sh [VERSION ...]
#
# There are three layers, each made once: packages for all versions (.envs/verl-base), the sglang that a version of
# verl pins (.envs/sglang-*), and verl itself. The environment of a version is a venv with all three on its path.
# The script also makes the model of the tests (.envs/verl-model). All five versions take 4 GB.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
envs=$(cd "$here/../.." && pwd)/.envs
python=${PYTHON:-python3.11}
base=$envs/verl-base
mkdir -p "$envs"
exec 9>"$envs/.verl.lock" && flock 9 # several test runs may start this at once
[ $# -gt 0 ] || set -- 0.4.0 0.4.1 0.5.0 0.6.0 0.6.1
install() { "$here/install.sh" "$base/bin/python" "$@"; }

sglang_of() {
  case $1 in
    0.4.* | 0.5.*) echo 0.4.6.post5 ;;
    0.6.0) echo 0.5.2 ;;
    0.6.1) echo 0.5.5 ;;
    *) echo "verl.sh: no sglang is known for verl $1" >&2; exit 2 ;;
  esac
}

make_base() {
  [ -f "$base/.made" ] && return
  "$python" -m venv "$base"
  install "$(grep ^torch== "$here/verl-requirements.txt")"
  install --requirement "$here/verl-requirements.txt"
  install --no-deps --requirement "$here/verl-requirements-nodeps.txt"
  touch "$base/.made"
}

make_sglang() {
  local folder=$envs/sglang-$1
  [ -f "$folder/.made" ] && return
  install --no-deps --target "$folder" "sglang==$1"
  # 0.4.6 imports names that later versions of triton lack.
  [ "$1" != 0.4.6.post5 ] || install --no-deps --target "$folder" triton==3.2.0
  touch "$folder/.made"
}

make_version() {
  local folder=$envs/verl-$1 sglang
  sglang=$(sglang_of "$1")
  [ -f "$folder/.made" ] && return
  make_base
  make_sglang "$sglang"
  "$python" -m venv --without-pip "$folder"
  local packages
  packages=$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  install --no-deps --target "$packages" "verl==$1"
  printf '%s\n' "$envs/sglang-$sglang" "$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
    > "$packages/layers.pth"
  touch "$folder/.made"
}

make_model() {
  [ -f "$envs/verl-model/.made" ] && return
  # One thread takes seconds; on a busy machine, two threads that wait for each other take minutes.
  OMP_NUM_THREADS=1 "$base/bin/python" -W ignore "$here/../trainers/verl/tool_model.py" "$envs/verl-model"
  touch "$envs/verl-model/.made"
}

for version in "$@"; do make_version "$version"; done
make_model
