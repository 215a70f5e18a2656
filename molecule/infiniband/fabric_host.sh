#!/bin/sh
# fabric_host.sh HOST ADDRESS: simulates an InfiniBand card and a RoCE card, whose interface has ADDRESS, on infiniband-a: on the PCI bus, in sysfs and in
# modprobe. Their kernel modules are on disk and not loaded. The kernel lacks ib_ipoib. On other hosts the bus is empty.
set -eu

mount -t tmpfs cards /sys/bus/pci/devices
[ "$1" = infiniband-a ] || exit 0

card() {
    folder=/sys/bus/pci/devices/$1
    mkdir -p "$folder/net/$3"
    echo 0x15b3 > "$folder/vendor"
    echo "$2" > "$folder/class"
    echo 0x1021 > "$folder/device"
    echo 0 > "$folder/numa_node"
    echo "32.0 GT/s PCIe" > "$folder/current_link_speed"
    echo 16 > "$folder/current_link_width"
    echo 0 > "$folder/net/$3/dev_port"
    ln -s /sys/bus/pci/drivers/mlx5_core "$folder/driver"
}
device() {
    folder=/srv/devices/$1
    mkdir -p "$folder/ports/1/counters" "$folder/ports/1/gids" "$folder/ports/1/gid_attrs/types" "$folder/ports/1/gid_attrs/ndevs"
    ln -s "/sys/bus/pci/devices/$2" "$folder/device"
    echo "1: CA" > "$folder/node_type"
    echo MT4129 > "$folder/hca_type"
    echo 28.39.1002 > "$folder/fw_ver"
    echo MT_0000000838 > "$folder/board_id"
    echo a088:c203:00e3:142a > "$folder/node_guid"
    echo a088:c203:00e3:142a > "$folder/sys_image_guid"
    cd "$folder/ports/1"
    echo "$3" > link_layer
    echo "$4" > rate
    echo "4: ACTIVE" > state
    echo "5: LinkUp" > phys_state
    echo "$5" > lid
    echo "$5" > sm_lid
    echo 1000 > counters/port_xmit_data
    echo 2000 > counters/port_rcv_data
}

# A writable /sys/class for a class that the kernel does not have. The other classes are unchanged.
mkdir /srv/class
mount --bind /sys/class /srv/class
mount -t tmpfs classes /sys/class
for class in /srv/class/*; do
    mkdir "/sys/class/${class##*/}"
    mount --bind "$class" "/sys/class/${class##*/}"
done
mkdir /sys/class/infiniband

card 0000:18:00.0 0x020700 ibs1
device mlx5_0 0000:18:00.0 InfiniBand "400 Gb/sec (4X NDR)" 0x4b
echo fe80:0000:0000:0000:a088:c203:00e3:142a > gids/0
echo "IB/RoCE v1" > gid_attrs/types/0

card 0000:3b:00.0 0x020000 eth0
device mlx5_1 0000:3b:00.0 Ethernet "100 Gb/sec (4X EDR)" 0x0
# The beginning of a RoCE card's GID table: both versions of the link-local address, then of the IPv4 one.
mapped=$(printf '0000:0000:0000:0000:0000:ffff:%02x%02x:%02x%02x' $(echo "$2" | tr . ' '))
index=0
for gid in fe80:0000:0000:0000:a288:c2ff:fee3:142a "$mapped"; do
    for version in "IB/RoCE v1" "RoCE v2"; do
        echo "$gid" > "gids/$index"
        echo "$version" > "gid_attrs/types/$index"
        echo eth0 > "gid_attrs/ndevs/$index"
        index=$((index + 1))
    done
done

# mlx5_ib creates the devices of the cards.
mount -t tmpfs modules /sys/module
mkdir -p /sys/module/mlx5_core /sys/module/ib_uverbs "/lib/modules/$(uname -r)"
for name in mlx5_ib ib_uverbs rdma_ucm ib_umad; do
    echo "kernel/drivers/infiniband/$name.ko.xz:"
done > "/lib/modules/$(uname -r)/modules.dep"
cat > /usr/local/sbin/modprobe <<'MODPROBE'
#!/bin/sh
set -eu
for name in "$@"; do
    [ "$name" = --all ] && continue
    grep --quiet "/$name.ko" "/lib/modules/$(uname -r)/modules.dep"
    mkdir -p "/sys/module/$name"
    [ "$name" != mlx5_ib ] || cp --recursive /srv/devices/* /sys/class/infiniband/
done
MODPROBE
chmod 0755 /usr/local/sbin/modprobe
