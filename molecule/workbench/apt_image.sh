#!/bin/sh
# apt_image.sh NAME ARCHIVE: builds an image from site/notebook:1, with apt, dpkg and pip of this host, and writes it to an archive as docker save does. Two
# packages are in /data1/share: of-apt.deb and of_pip-1.0-py3-none-any.whl.
set -eu
name=$1 archive=$2
work=$(mktemp -d /var/lib/docker/image.XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root" && cd "$work/root"
copy() {
    for path in "$@"; do
        mkdir -p ".$(dirname "$path")"
        cp -aLn "$path" ".$path"
    done
}
mkdir -p etc/apt/apt.conf.d etc/apt/preferences.d etc/apt/sources.list.d etc/apt/trusted.gpg.d etc/dpkg var/lib/apt/lists/partial var/cache/apt/archives/partial \
    var/lib/dpkg/info var/lib/dpkg/updates var/lib/dpkg/triggers var/log/apt tmp usr/local/lib/python3.11/dist-packages
touch var/lib/dpkg/status var/lib/dpkg/available
copy /usr/bin/apt-get /usr/bin/apt-config /usr/lib/apt/methods /usr/lib/apt/solvers /usr/share/dpkg
for tool in dpkg dpkg-deb dpkg-split dpkg-query dpkg-trigger dpkg-divert dpkg-statoverride update-alternatives tar gzip xz zstd rm mv cp chmod chown ln ldconfig \
    start-stop-daemon diff grep sed; do
    path=$(command -v $tool) || continue
    mkdir -p usr/bin
    cp -L "$path" usr/bin/
done
for wheel in /usr/share/python-wheels/pip-*.whl; do
    python3 -m zipfile -e "$wheel" usr/local/lib/python3.11/dist-packages
done
find . -type f \( -perm -100 -o -name '*.so*' \) -exec ldd {} + 2> /dev/null | sed -n 's/^\t.*=> \(\/[^ ]*\) (0x.*/\1/p; s/^\t\(\/[^ ]*\) (0x.*/\1/p' | sort -u |
    while read -r path; do copy "$path"; done
cd "$work"
printf 'FROM site/notebook:1\nCOPY root /\n' > Dockerfile
docker build --quiet --tag "$name" . > /dev/null
docker save "$name" > "$archive"
docker rmi "$name" > /dev/null

mkdir -p deb/DEBIAN deb/usr/bin
printf 'Package: of-apt\nVersion: 1\nArchitecture: all\nMaintainer: none <none@example.org>\nDescription: test\n' > deb/DEBIAN/control
printf '#!/bin/sh\necho "of apt"\n' > deb/usr/bin/of-apt
chmod 755 deb/usr/bin/of-apt
dpkg-deb --root-owner-group --build deb /data1/share/of-apt.deb > /dev/null
python3 - << 'PROGRAM'
import zipfile

place = "of_pip-1.0.dist-info/"
with zipfile.ZipFile("/data1/share/of_pip-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("of_pip.py", "WORD = 'of pip'\n")
    wheel.writestr(place + "METADATA", "Metadata-Version: 2.1\nName: of-pip\nVersion: 1.0\n")
    wheel.writestr(place + "WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr(place + "RECORD", "of_pip.py,,\n%sMETADATA,,\n%sWHEEL,,\n%sRECORD,,\n" % (place, place, place))
PROGRAM
