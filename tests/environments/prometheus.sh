#!/bin/sh
# Unpack Debian's Prometheus into .envs/prometheus, for `tests/live/test_prometheus.py`: its programs need no installation.
# If it is not available, the tests are skipped.
set -eu
envs=$(cd "$(dirname "$0")/../.." && pwd)/.envs
[ -e "$envs/prometheus/.done" ] && exit
command -v prometheus >/dev/null && exit
mkdir -p "$envs/prometheus"
cd "$envs/prometheus"
command -v apt-get >/dev/null || { echo "prometheus.sh: no Prometheus" >&2; exit 0; }
for pause in 5 20 60 0; do # .ci/run installs Chromium meanwhile: one of both at a time can update apt's lists
  apt-get download prometheus >/dev/null 2>&1 && break
  [ "$(id -u)" = 0 ] && apt-get update -qq >/dev/null 2>&1 || sleep $pause
done
ls prometheus_*.deb >/dev/null 2>&1 || {
  echo "prometheus.sh: no Prometheus" >&2
  exit 0
}
dpkg-deb --extract prometheus_*.deb .
rm prometheus_*.deb
touch .done
