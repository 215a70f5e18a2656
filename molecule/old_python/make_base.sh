#!/bin/bash
# make_base.sh ARCHIVE: a file system of Ubuntu 18.04 with Python 3.6, pip 9, a compiler and sshd, from the Ubuntu mirror beside the machine's own Debian mirror,
# or from the one that TRAINYARD_UBUNTU_MIRROR names.
set -euo pipefail
archive=$1
mirror=${TRAINYARD_UBUNTU_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' | sed -En 's,^(https?://.*)/(debian|ubuntu)/?$,\1/ubuntu,p' | sort -u | head -n 1)}
if [ -z "$mirror" ] || ! curl --silent --fail --head --output /dev/null --max-time 30 "$mirror/dists/bionic/InRelease"; then
    echo "no Ubuntu 18.04 at '$mirror': name a mirror that has it in TRAINYARD_UBUNTU_MIRROR" >&2
    exit 1
fi
proxy=$(apt-config dump Acquire::http::Proxy | sed -n 's/.*"\(.\+\)";/\1/p')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# The file system is a test's: Debian has no keyring of Ubuntu's.
for suite in bionic bionic-updates; do
    echo "deb [trusted=yes] $mirror $suite main universe"
done >"$work/bionic.list"
TMPDIR=$work mmdebstrap --variant=minbase ${proxy:+--aptopt="Acquire::http::Proxy \"$proxy\";"} \
    --include=apt,ca-certificates,g++,iproute2,make,openssh-client,openssh-server,procps,python3,python3-dev,python3-pip,sudo \
    --customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/apt/apt.conf.d/99mmdebstrap' \
    bionic "$work/root.tar" "$work/bionic.list"
mkdir -p "$(dirname "$archive")"
mv "$work/root.tar" "$archive"
