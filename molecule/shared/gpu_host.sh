#!/bin/sh
# gpu_host.sh DRIVER COUNT [without-libraries]: makes a host look like one with GPUs: on the PCI bus, in the kernel's driver, the loader and nvidia-smi.
# DRIVER is a version of the test's repository below /srv/vendor. A second run is a new driver, loaded already. Libraries and nvidia-smi are left out where
# packages bring them.
set -eu
driver=$1 count=$2 libraries=${3-}

mountpoint --quiet /sys/bus/pci/devices || mount -t tmpfs gpus /sys/bus/pci/devices
number=0
while [ "$number" -lt "$count" ]; do
    folder=/sys/bus/pci/devices/0000:6$number:00.0
    mkdir -p "$folder"
    echo 0x10de > "$folder/vendor"
    echo 0x030200 > "$folder/class"
    echo 0x2330 > "$folder/device"
    number=$((number + 1))
done

mountpoint --quiet /proc/driver || mount -t tmpfs driver /proc/driver
mkdir -p /proc/driver/nvidia
echo "NVRM version: NVIDIA UNIX x86_64 Kernel Module  $driver  Tue Mar  5 22:23:56 UTC 2024" > /proc/driver/nvidia/version

if [ -z "$libraries" ]; then
    # The files alone: whether the packages of a driver are right is for scenario gpu_stack.
    rm -f /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.* /usr/lib/x86_64-linux-gnu/libcuda.so.*
    for package in libnvidia-ml1 libcuda1 nvidia-smi; do
        dpkg-deb --extract "$(ls /srv/vendor/compute/cuda/repos/debian12/x86_64/${package}_"$driver"-*.deb)" /
    done
    ldconfig
fi
# The answer to "nvidia-smi -q -x", from which the test's nvidia-smi derives the others.
mkdir -p /etc/vendor-fixtures/nvidia-smi
{
    echo '<?xml version="1.0" ?>'
    echo '<nvidia_smi_log>'
    echo "<driver_version>$driver</driver_version><cuda_version>12.4</cuda_version><attached_gpus>$count</attached_gpus>" | sed 's/></>\n</g'
    number=0
    while [ "$number" -lt "$count" ]; do
        printf '<gpu id="00000000:6%s:00.0">\n<product_name>NVIDIA H100 80GB HBM3</product_name>\n<uuid>GPU-0000000%s-1111-2222-3333-444444444444</uuid>\n</gpu>\n' \
            "$number" "$number"
        number=$((number + 1))
    done
    echo '</nvidia_smi_log>'
} > /etc/vendor-fixtures/nvidia-smi/xml
