#!/bin/bash
# make_base.sh ARCHIVE: a file system of Ubuntu 18.04 with Python 3.6, pip 9, a compiler and sshd. It comes from the Ubuntu mirror beside the machine's own
# Debian mirror, or from the one that TRAINYARD_UBUNTU_MIRROR names.
set -euo pipefail
archive=$1
mirror=${TRAINYARD_UBUNTU_MIRROR:-}
if [ -z "$mirror" ]; then
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | sed -En 's,^(https?://.*)/(debian|ubuntu)/?$,\1/ubuntu,p' | sort -u | head -n 1)
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Debian 12 has no keyring of Ubuntu's. It comes from the mirror, and the checksum proves that it is the one that Ubuntu published.
# apt's own program knows apt's proxy.
keyring=ubuntu-keyring_2018.09.18.1~18.04.2_all.deb
if [ -z "$mirror" ] || ! /usr/lib/apt/apt-helper download-file "$mirror/pool/main/u/ubuntu-keyring/$keyring" "$work/keyring.deb" \
    SHA256:5d8609563fb3074026b254d7d5248f90d393c7dbafcac48916f333bf3c90fed9; then
    echo "no Ubuntu 18.04 at '$mirror', or its $keyring has another checksum: name a mirror that has it in TRAINYARD_UBUNTU_MIRROR" >&2
    exit 1
fi
dpkg --extract "$work/keyring.deb" "$work/keyring"
proxy=$(apt-config dump Acquire::http::Proxy | sed -n 's/.*"\(.\+\)";/\1/p')
for suite in bionic bionic-updates; do
    echo "deb [signed-by=$work/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg] $mirror $suite main universe"
done >"$work/bionic.list"
# Inside, apt finds the keys where Ubuntu's own package ubuntu-keyring places them.
TMPDIR=$work mmdebstrap --variant=minbase ${proxy:+--aptopt="Acquire::http::Proxy \"$proxy\";"} \
    --include=apt,ca-certificates,g++,iproute2,make,openssh-client,openssh-server,procps,python3,python3-dev,python3-pip,sudo \
    --customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/apt/apt.conf.d/99mmdebstrap' \
    --customize-hook='sed -i "s/\[signed-by=[^]]*\] //" "$1"/etc/apt/sources.list.d/*.list' \
    bionic "$work/root.tar" "$work/bionic.list"
mkdir -p "$(dirname "$archive")"
mv "$work/root.tar" "$archive"
