#!/bin/sh
# image.sh STORE NAME: makes an image with this host's shell and a few tools, in a store of podman. Copying Python takes minutes on a virtual host.
set -eu
work=$(mktemp -d /var/tmp/image.XXXXXX)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p bin data1/share dev etc home proc run sys tmp usr/bin usr/local/bin var/tmp
chmod 1777 tmp var/tmp
echo 'root:x:0:0::/root:/bin/sh' > etc/passwd
echo 'root:x:0:' > etc/group
for tool in sh cat env id ls sleep touch; do
    cp -L "$(command -v $tool)" bin/$tool
done
ldd bin/* | sed -n 's/^\t.*=> \(\/[^ ]*\) (0x.*/\1/p; s/^\t\(\/[^ ]*\) (0x.*/\1/p' | sort -u | while read -r path; do
    mkdir -p ".$(dirname "$path")"
    cp -L "$path" ".$path"
done
tar --create . | podman --root="$1" --runroot=/run/trainyard/images --storage-driver=overlay import - "$2" > /dev/null
# As role job_container does it after the load of an image.
/usr/local/lib/trainyard/job/clean-store "$1"
