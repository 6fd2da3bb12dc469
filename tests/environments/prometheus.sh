#!/bin/sh
# Unpack Debian's Prometheus into .envs/prometheus, for `tests/live/test_prometheus.py`: its programs need no installation.
# If it is not available, the tests are skipped.
set -eu
envs=$(cd "$(dirname "$0")/../.." && pwd)/.envs
[ -e "$envs/prometheus/.done" ] && exit
command -v prometheus >/dev/null && exit
mkdir -p "$envs/prometheus"
cd "$envs/prometheus"
download() { apt-get download prometheus >/dev/null 2>&1; }
download || { apt-get update -qq && download; } || {
  echo "prometheus.sh: no Prometheus" >&2
  exit 0
}
dpkg-deb --extract prometheus_*.deb .
rm prometheus_*.deb
touch .done
