#!/bin/sh
# make_notebook_image.sh: builds site/notebook:1, which is site/tools:1 with the Python packages of /var/lib/docker/kernel.
set -eu
cd /var/lib/docker/kernel
# The libraries of this host that they need.
find root -name '*.so' -exec ldd {} + 2> /dev/null | sed -n 's/^\t[^ ]* => \(\/[^ ]*\) (0x.*/\1/p' | grep -v "$PWD" | sort -u > libraries
while read -r path; do
    mkdir -p "root$(dirname "$path")"
    cp -L "$path" "root$path"
done < libraries
printf 'FROM site/tools:1\nCOPY root /\n' > Dockerfile
docker build --quiet --tag site/notebook:1 . > /dev/null
