#!/bin/sh
# gpu_host_with_people.sh [without-people]: makes a host that runs rootless containers: an unmasked /proc, a real file system for containers, four GPUs, two
# people of a group.
set -eu
# docker run --security-opt systempaths=unconfined does this, and Docker's interface has no option for it.
for point in $(awk '$5 ~ "^/proc/" {print $5}' /proc/self/mountinfo | sort --reverse); do
    umount --lazy "$point"
done
mount --make-rshared /
mkdir -p /var/lib/docker/of-jobs /var/lib/trainyard/containers
mount --bind /var/lib/docker/of-jobs /var/lib/trainyard/containers

for number in 0 1 2 3; do
    mknod -m 666 /dev/nvidia$number c 195 $number
done

[ "${1-}" != without-people ] || exit 0
groupadd --gid 3001 vision
for person in alice:2101 bob:2102; do
    groupadd --gid "${person#*:}" "${person%:*}"
    useradd --create-home --uid "${person#*:}" --gid "${person#*:}" --shell /bin/bash "${person%:*}"
done
usermod --append --groups vision alice
chmod 1777 /data1/share

command -v docker > /dev/null || {
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive apt-get install --quiet=2 --yes --no-install-recommends docker.io docker-cli > /dev/null
}
