#!/bin/sh
# make_repository.sh FOLDER: a signed apt repository with the layout of Docker's, with the distribution's engine under the vendor's
# package names. It has the requested version and a newer one, which apt installs without a pin.
set -eu
folder=$1
. /etc/os-release
suffix="1~$ID.$VERSION_ID~$VERSION_CODENAME"
wanted=5:20.10.24-$suffix newer=5:28.5.1-$suffix
export DEBIAN_FRONTEND=noninteractive
work=$(mktemp -d)
chmod 755 "$work"
cd "$work"

apt-get update --quiet=2
apt-get install --quiet=2 --yes --no-install-recommends apt-utils gpg gpg-agent >/dev/null
apt-get download --quiet=2 docker.io containerd
for package in docker.io containerd; do dpkg-deb --raw-extract ${package}_*.deb $package; done

package() {  # package NAME VERSION FIELDS: builds a package from the folder NAME
    mkdir -p "$1/DEBIAN" "$pool"
    rm -f "$1/DEBIAN/md5sums"
    printf 'Package: %s\nVersion: %s\nArchitecture: amd64\nMaintainer: trainyard maintainers <maintainers@trainyard.example>\nDescription: %s, for a test\n%b' \
        "$1" "$2" "$1" "${3:-}" >"$1/DEBIAN/control"
    dpkg-deb --root-owner-group -Zgzip -z1 --build "$1" "$pool/$1_${2#*:}_amd64.deb" >/dev/null
    rm -rf "${work:?}/$1"
}

plugin() {  # plugin NAME VERSION: answers the query of the command line; nothing is built with it here
    mkdir -p "docker-$1-plugin/usr/libexec/docker/cli-plugins"
    cat >"docker-$1-plugin/usr/libexec/docker/cli-plugins/docker-$1" <<PLUGIN
#!/bin/sh
[ "\$1" != docker-cli-plugin-metadata ] || echo '{"SchemaVersion": "0.1.0", "Vendor": "Docker Inc.", "Version": "v$2"}'
PLUGIN
    chmod 755 "docker-$1-plugin/usr/libexec/docker/cli-plugins/docker-$1"
    package "docker-$1-plugin" "$2-$suffix"
}

pool=$folder/$ID/dists/$VERSION_CODENAME/pool/stable/amd64
mkdir -p docker-ce-cli/usr/bin
mv docker.io/usr/bin/docker docker-ce-cli/usr/bin/
mv docker.io docker-ce
mv containerd containerd.io
package docker-ce "$wanted" 'Depends: adduser, docker-ce-cli, containerd.io, iptables, tini, libdevmapper1.02.1, libsystemd0\nConflicts: docker.io\n'
package docker-ce-cli "$wanted" 'Conflicts: docker.io\n'
package containerd.io 1.6.20-1 'Depends: runc\nConflicts: containerd\n'
package docker-ce "$newer"
package docker-ce-cli "$newer"
plugin buildx 0.29.1
plugin compose 2.40.0

cd "$folder/$ID"
mkdir -p "dists/$VERSION_CODENAME/stable/binary-amd64"
apt-ftparchive packages "dists/$VERSION_CODENAME/pool" >"dists/$VERSION_CODENAME/stable/binary-amd64/Packages"
cd "dists/$VERSION_CODENAME"
apt-ftparchive -o APT::FTPArchive::Release::Origin=Docker -o "APT::FTPArchive::Release::Suite=$VERSION_CODENAME" \
    -o APT::FTPArchive::Release::Components=stable -o APT::FTPArchive::Release::Architectures=amd64 release . >"$work/Release"
umask 077
export GNUPGHOME="$work/gnupg"
mkdir "$GNUPGHOME"
for name in docker other; do
    gpg --batch --quiet --passphrase '' --quick-generate-key "$name <maintainers@trainyard.example>" ed25519 sign 1d
done
umask 022
gpg --batch --quiet --local-user docker --clearsign --output InRelease "$work/Release"
gpg --armor --export docker | tee "$folder/$ID/gpg" >"$folder/gpg"
gpg --armor --export other >"$folder/other.asc"
gpgconf --kill gpg-agent
rm -rf "$work"
touch "$folder/made"
