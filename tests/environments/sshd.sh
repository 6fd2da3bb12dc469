#!/bin/sh
# Make .envs/sshd: Debian's sshd and rsync, unpacked from apt's packages, without root, for `tests/on_ssh`. The tests use
# an installed sshd and rsync first; where there is neither, and no apt, they are skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$root/.envs/sshd
[ -f "$folder/.made" ] && exit
PATH=$PATH:/usr/sbin
command -v sshd >/dev/null && command -v rsync >/dev/null && exit
if ! command -v apt-get >/dev/null; then
  echo "no apt-get; tests/on_ssh will be skipped" >&2
  exit
fi
if [ "$(id -u)" = 0 ]; then
  apt-get update -qq || true
  # sshd of root drops its rights to this user.
  id sshd >/dev/null 2>&1 || useradd --system --home-dir /run/sshd --shell /usr/sbin/nologin sshd
fi
mkdir -p "$folder/packages"
cd "$folder/packages"
# Besides the programs: the libraries that a small Debian lacks.
for package in openssh-server openssh-client openssh-sftp-server rsync libwrap0 libpopt0 libxxhash0 liblz4-1 libzstd1; do
  apt-get download "$package" || echo "apt offers no $package" >&2
done
for archive in *.deb; do
  [ -e "$archive" ] || exit 0
  dpkg-deb --extract "$archive" "$folder"
done
touch "$folder/.made"
