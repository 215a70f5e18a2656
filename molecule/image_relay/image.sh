#!/bin/sh
# image.sh KIND ARCHIVE: an archive, as docker save writes it, of an image that is made from this host's files. KIND is small (a shell, no apt), or work: with
# apt, pip and a library that looks like PyTorch, without sshd and sudo.
set -eu
kind=$1 archive=$2
folder=$(mktemp -d /var/lib/docker/image.XXXXXX)
trap 'rm -rf "$folder"' EXIT
root=$folder/root
mkdir "$root"
if [ "$kind" = small ]; then
    mkdir -p "$root/bin" "$root/etc" "$root/usr/lib/python3/dist-packages/torch-2.5.1+cu121.dist-info"
    cp -L /bin/sh "$root/bin/sh"
    echo 'root:x:0:0::/root:/bin/sh' > "$root/etc/passwd"
    ldd /bin/sh | sed -n 's/^\t.*=> \(\/[^ ]*\) (0x.*/\1/p; s/^\t\(\/[^ ]*\) (0x.*/\1/p' | while read -r path; do
        mkdir -p "$root$(dirname "$path")" && cp -L "$path" "$root$path"
    done
else
    for path in proc sys dev run tmp data1 srv root var/lib/docker var/cache/apt var/lib/apt/lists etc/systemd; do
        set -- "$@" "--exclude=./$path/*"
    done
    # Large, and of no use in an image.
    for name in docker dockerd docker-registry docker-proxy ctr dnet ovrouter containerd 'containerd-*' runc podman buildah skopeo; do
        set -- "$@" "--exclude=./usr/bin/$name" "--exclude=./usr/sbin/$name"
    done
    shift 2
    tar --create --one-file-system "$@" --exclude=./usr/lib/cni --exclude=./usr/lib/podman --exclude=./usr/share/doc --exclude=./usr/share/locale \
        --directory / . | tar --extract --directory "$root"
    # As if these had never been there.
    rm -f "$root/etc/resolv.conf" && touch "$root/etc/resolv.conf"
    SUDO_FORCE_REMOVE=yes chroot "$root" dpkg --purge --force-depends openssh-server sudo > /dev/null 2>&1
    rm -rf "$root"/etc/ssh/sshd_config* "$root"/etc/ssh/ssh_host_*
    mkdir "$root/usr/lib/python3/dist-packages/tensorflow_cpu-2.15.0.dist-info"
    # A program of the image that tells which IDs it has on the host.
    echo "import os; ids = '/proc/self/uid_map'; os.path.exists(ids) and open('/etc/who-completed', 'w').write(open(ids).read())" \
        > "$root/usr/lib/python3/dist-packages/who-completed.pth"
fi
tar --create --file "$folder/image.tar" --directory "$root" .
name=outside/$kind:1
docker import --change 'ENV CUDA_VERSION=12.4.1' --change 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' "$folder/image.tar" "$name" > /dev/null
docker save "$name" > "$archive"
docker image rm "$name" > /dev/null
