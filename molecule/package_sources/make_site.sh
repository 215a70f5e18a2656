#!/bin/sh
# make_site.sh FOLDER ADDRESS: a company's replacements for the vendors' servers, as far as the scenario needs them.
set -eu
folder=$1 address=$2
export DEBIAN_FRONTEND=noninteractive
apt-get update --quiet=2
apt-get install --quiet=2 --yes --no-install-recommends apt-utils gpg gpg-agent >/dev/null
rm -rf "$folder"
mkdir -p "$folder/wheels" "$folder/index/simple" "$folder/mirror" "$folder/proxy" "$folder/package/DEBIAN"
cd "$folder"

for name in site other; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$name authority" -keyout $name-ca.key -out $name-ca.pem \
        -addext keyUsage=critical,keyCertSign
done
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj "/CN=$address" -keyout index.key -out index.csr
printf 'subjectAltName=IP:%s\n' "$address" >index.ext
openssl x509 -req -in index.csr -CA site-ca.pem -CAkey site-ca.key -CAcreateserial -days 2 -extfile index.ext -out index.pem 2>/dev/null
echo "the site's index" >index/simple/index.html
# README is not for builds and must not be copied.
for name in horovod-0.28.1.tar.gz torch-2.13.0-py3-none-any.whl README; do echo "$name" >"wheels/$name"; done

printf 'Package: site-proof\nVersion: 1.0\nArchitecture: all\nMaintainer: the site\nDescription: proof\n' >package/DEBIAN/control
dpkg-deb --root-owner-group --build package mirror/site-proof_1.0_all.deb >/dev/null
cd mirror
apt-ftparchive packages . >Packages
apt-ftparchive release . >../Release
GNUPGHOME=$(mktemp -d)
export GNUPGHOME
gpg --batch --quiet --passphrase '' --quick-generate-key 'site mirror' ed25519 sign 2d
gpg --batch --quiet --clearsign --output InRelease ../Release
gpg --armor --export >../mirror.asc
gpgconf --kill gpg-agent

systemd-run --quiet --unit=site-mirror python3 -m http.server --directory "$folder/mirror" 8000
# Its answers are not useful, but it logs the requests.
systemd-run --quiet --unit=site-proxy python3 -u -m http.server --directory "$folder/proxy" 3128
systemd-run --quiet --unit=site-index --working-directory="$folder/index" openssl s_server -quiet -accept 8443 -cert ../index.pem -key ../index.key -WWW
touch "$folder/made"
