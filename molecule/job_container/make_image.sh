#!/bin/sh
# make_image.sh NAME [COMMAND]: builds an image with this host's shell, some tools and Python. COMMAND imports it, "docker import" if not given.
set -eu
work=$(mktemp -d /var/lib/docker/image.XXXXXX)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root" && cd "$work/root"
mkdir -p bin data1/share dev etc home proc run sys tmp usr/bin usr/local/bin usr/sbin var/tmp
chmod 1777 tmp var/tmp
echo 'root:x:0:0::/root:/bin/sh' > etc/passwd
echo 'root:x:0:' > etc/group
# Only root reads it, as in many images.
mkdir -m 700 root && echo secret > root/file && chmod 600 root/file

# On the host it would be a program that runs as root.
cp "$(command -v id)" usr/bin/who-am-i && chmod 4755 usr/bin/who-am-i
# One that reads everything by its capabilities, cap_setuid and cap_dac_override=ep, and a device of the host.
cp -L "$(command -v cat)" usr/bin/reads-all
python3 -c 'import os, struct; os.setxattr("usr/bin/reads-all", "security.capability", struct.pack("<5I", 0x2000001, 1 << 1 | 1 << 7, 0, 0, 0))'
mknod -m 666 dev/of-host c 1 5

python=$(readlink -f /usr/bin/python3)
library=/usr/lib/$(basename "$python")
mkdir -p usr/lib
cp -r "$library" usr/lib/
rm -rf usr/lib/python3*/__pycache__ usr/lib/python3*/test usr/lib/python3*/dist-packages
cp "$python" usr/bin/python3
# For trainyard-launch, with the path of its first line.
cp -L "$(command -v env)" usr/bin/
cp -L /usr/sbin/sshd usr/sbin/
cp -L /usr/bin/ssh usr/bin/
# glibc loads it when a thread ends.
cp -L --parents /usr/lib/*/libgcc_s.so.1 .
for tool in sh cat date df env id ls mkdir rm setsid sleep stat touch; do
    cp -L "$(command -v $tool)" "bin/$tool"
done
find bin usr/bin usr/sbin usr/lib -type f \( -perm -100 -o -name '*.so' \) -exec ldd {} + 2> /dev/null |
    sed -n 's/^\t.*=> \(\/[^ ]*\) (0x.*/\1/p; s/^\t\(\/[^ ]*\) (0x.*/\1/p' | sort -u > ../libraries
while read -r path; do
    mkdir -p ".$(dirname "$path")"
    cp -Ln "$path" ".$path"
done < ../libraries
tar --create --xattrs --xattrs-include='security.*' --file ../image.tar .
${2:-docker import} ../image.tar "$1" > /dev/null
