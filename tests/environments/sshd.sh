#!/bin/sh
# Make .envs/sshd: Debian's sshd and rsync, unpacked from apt's packages, without root, for `tests/on_ssh`. The tests use
# an installed sshd and rsync first; where there is neither, and no apt, they are skipped.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$root/.envs/sshd
[ -f "$folder/.made" ] && exit
command -v sshd >/dev/null && command -v rsync >/dev/null && exit
if ! command -v apt-get >/dev/null; then
  echo "no apt-get; tests/on_ssh will be skipped" >&2
  exit
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
