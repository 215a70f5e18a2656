#!/bin/sh
# disguise.sh RELEASE: gives a Debian host the names, sources and settings of Ubuntu Server. Its programs stay Debian's.
set -eu
release=$1
case "$release" in
noble) version=24.04 debian=trixie/sid kernel=6.8.0-85-generic ;;
jammy) version=22.04 debian=bookworm/sid kernel=5.15.0-160-generic ;;
esac
. /usr/lib/os-release

cat >/etc/lsb-release <<EOF
DISTRIB_ID=Ubuntu
DISTRIB_RELEASE=$version
DISTRIB_CODENAME=$release
DISTRIB_DESCRIPTION="$PRETTY_NAME"
EOF
echo "$debian" >/etc/debian_version
printf 'Vendor: Ubuntu\nVendor-URL: https://www.ubuntu.com/\nBugs: https://bugs.launchpad.net/ubuntu/+filebug\nParent: Debian\n' >/etc/dpkg/origins/ubuntu
ln -sf ubuntu /etc/dpkg/origins/default
sed --in-place 's/^Maintainer: .*/Maintainer: Ubuntu Developers <ubuntu-devel-discuss@lists.ubuntu.com>/' /var/lib/dpkg/status

# The sources as Ubuntu's installers write them. 22.04's have no Signed-By: its key is in trusted.gpg.d.
find /etc/apt -name '*.list' -o -name '*.sources' | xargs rm -f
rm -rf /var/lib/apt/lists/*
archive=http://archive.ubuntu.com/ubuntu/ security=http://security.ubuntu.com/ubuntu/
if [ "$release" = jammy ]; then
    cp /usr/share/keyrings/ubuntu-archive-keyring.gpg /etc/apt/trusted.gpg.d/ubuntu-keyring-2018-archive.gpg
    for components in 'main restricted' universe multiverse; do
        printf 'deb %s jammy %s\ndeb %s jammy-updates %s\n' "$archive" "$components" "$archive" "$components"
    done >/etc/apt/sources.list
    echo "deb $security jammy-security main restricted universe multiverse" >>/etc/apt/sources.list
else
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main restricted universe multiverse\nSigned-By: %s\n\n' \
        "$archive" 'noble noble-updates' /usr/share/keyrings/ubuntu-archive-keyring.gpg \
        "$security" noble-security /usr/share/keyrings/ubuntu-archive-keyring.gpg >/etc/apt/sources.list.d/ubuntu.sources
fi
# A proxy of the machine knows the real archive only.
for host in archive security; do echo "Acquire::http::Proxy::$host.ubuntu.com \"DIRECT\";"; done >/etc/apt/apt.conf.d/99standin

# 24.04's needrestart runs from apt and restarts services by itself; 22.04's asks. Debian's program does not know Ubuntu's mode u, whose default is set instead.
if [ "$release" = noble ]; then
    sed 's/ -m u / /' /srv/99needrestart-noble >/etc/apt/apt.conf.d/99needrestart
    sed --in-place "s/^#\$nrconf{restart} = 'i';/\$nrconf{restart} = 'a';/" /etc/needrestart/needrestart.conf
    grep --quiet "^\$nrconf{restart} = 'a'" /etc/needrestart/needrestart.conf
fi
printf 'APT::Periodic::Update-Package-Lists "1";\nAPT::Periodic::Unattended-Upgrade "1";\n' >/etc/apt/apt.conf.d/20auto-upgrades

# Docker mounts resolv.conf, and its name server asks nobody else.
mkdir -p /etc/systemd/resolved.conf.d
printf '[Resolve]\nDNS=127.0.0.11\nDNSSEC=no\n' >/etc/systemd/resolved.conf.d/lab.conf
umount /etc/resolv.conf
ln -sf ../run/systemd/resolve/stub-resolv.conf /etc/resolv.conf
systemctl --quiet enable systemd-resolved
systemctl restart systemd-resolved
# By the installer.
sed 's/^127\.0\.0\.1.*/&\n127.0.1.1 '"$(hostname)"'/' /etc/hosts >/srv/hosts
cat /srv/hosts >/etc/hosts

# pyenv's Python, where this machine has one, looks for its library in the folder that pyenv built it for.
if [ -d /opt/python/lib ]; then
    echo /opt/python/lib >/etc/ld.so.conf.d/standin.conf
    ldconfig
    # Ubuntu's Python finds the distribution's pure modules, such as requests.
    printf '#!/bin/sh\nPYTHONPATH=/usr/lib/python3/dist-packages exec /opt/python/bin/python3 "$@"\n' >/usr/local/bin/ubuntu-python3
    chmod 755 /usr/local/bin/ubuntu-python3
fi

touch "/boot/vmlinuz-$kernel"
rm -rf /srv/debs /srv/hosts
apt-get update --quiet=2
