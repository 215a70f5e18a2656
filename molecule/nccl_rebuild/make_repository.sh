#!/bin/sh
# make_repository.sh IMAGE FOLDER: libnccl2 and libnccl-dev from the NCCL that PyTorch brings in IMAGE, in a signed apt repository of NVIDIA's layout (flat).
# Besides the version that is wanted it has a newer one: what isn't pinned gets that.
set -eu
image=$1 folder=$2
wanted=2.28.9-1+cuda13.0 newer=2.30.7-1+cuda13.2
libraries=/usr/lib/x86_64-linux-gnu

rm -rf "$folder"
mkdir -p "$folder/public" "$folder/nccl"
nccl=$(docker run --rm --network none --entrypoint python3 "$image" -c 'import nvidia.nccl; print(nvidia.nccl.__path__[0])')
container=$(docker create --network none "$image")
docker cp "$container:$nccl/." "$folder/nccl"
docker rm "$container" >/dev/null

package() {  # package NAME VERSION DEPENDS: what lies in $folder/root becomes NAME_VERSION_amd64.deb
    mkdir -p "$folder/root/DEBIAN"
    cat >"$folder/root/DEBIAN/control" <<CONTROL
Package: $1
Version: $2
Architecture: amd64
Maintainer: trainyard maintainers <maintainers@trainyard.example>
Depends: $3
Description: NVIDIA NCCL out of PyTorch's wheel, for a test
CONTROL
    dpkg-deb --root-owner-group -Zgzip -z1 --build "$folder/root" "$folder/public/$1_$2_amd64.deb" >/dev/null
    rm -rf "$folder/root"
}

for version in "$wanted" "$newer"; do
    library=libnccl.so.${version%%-*}
    mkdir -p "$folder/root$libraries"
    # Nobody is to install the newer one: that it is there is enough.
    { [ "$version" != "$wanted" ] || cat "$folder/nccl/lib/libnccl.so.2"; } >"$folder/root$libraries/$library"
    ln -s "$library" "$folder/root$libraries/libnccl.so.2"
    package libnccl2 "$version" libc6
    mkdir -p "$folder/root$libraries" "$folder/root/usr/include"
    cp -r "$folder/nccl/include/." "$folder/root/usr/include"
    ln -s libnccl.so.2 "$folder/root$libraries/libnccl.so"
    package libnccl-dev "$version" "libnccl2 (= $version)"
done

cd "$folder/public"
apt-ftparchive packages . >Packages
apt-ftparchive -o APT::FTPArchive::Release::Origin=NVIDIA release . >../Release
mv ../Release Release
umask 077
GNUPGHOME=$(mktemp -d)
export GNUPGHOME
gpg --batch --quiet --passphrase '' --quick-generate-key 'nccl_rebuild <maintainers@trainyard.example>' ed25519 sign 1d
umask 022
gpg --batch --quiet --clearsign --output InRelease Release
gpg --armor --export >../repository.asc
gpgconf --kill gpg-agent
rm -rf "$GNUPGHOME" "$folder/nccl"
