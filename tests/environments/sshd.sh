#!/bin/sh
# Make .envs/sshd: Debian's sshd and rsync, unpacked without root from the packages of apt, for `tests/on_ssh`.
# Where apt offers none, the tests are skipped; they also use an sshd and an rsync that are installed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
folder=$root/.envs/sshd
[ -f "$folder/.made" ] && exit
mkdir -p "$folder/packages"
cd "$folder/packages"
# Besides the two programs: the libraries that a small Debian lacks.
for package in openssh-server openssh-client openssh-sftp-server rsync libwrap0 libpopt0 libxxhash0 liblz4-1 libzstd1; do
  apt-get download "$package" || echo "apt offers no $package" >&2
done
for archive in *.deb; do
  dpkg-deb --extract "$archive" "$folder"
done
touch "$folder/.made"
