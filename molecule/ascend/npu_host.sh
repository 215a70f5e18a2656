#!/bin/sh
# npu_host.sh HOST: creates eight NPUs of the first generation (910A) with driver, firmware and CANN, as their installers leave them.
set -eu

groupadd --system HwHiAiUser
groupadd --gid 3001 vision
for person in alice:2101 bob:2102; do
    groupadd --gid "${person#*:}" "${person%:*}"
    useradd --create-home --uid "${person#*:}" --gid "${person#*:}" --shell /bin/bash "${person%:*}"
done
usermod --append --groups HwHiAiUser alice

number=0
for name in davinci0 davinci1 davinci2 davinci3 davinci4 davinci5 davinci6 davinci7 davinci_manager devmm_svm hisi_hdc; do
    mknod -m 660 "/dev/$name" c 236 "$number"
    chgrp HwHiAiUser "/dev/$name"
    number=$((number + 1))
done

base=/usr/local/Ascend
home=$base/ascend-toolkit/8.0.RC1
mkdir -p "$base/driver/tools" "$base/driver/lib64/driver" "$base/firmware" "$home/bin" "$home/lib64" "$home/python/site-packages" \
    "$home/opp/built-in/op_impl/ai_core/tbe" "$home/compiler/ccec_compiler/bin" "$home/$(uname -m)-linux" /var/log/ascend_seclog
ln -s "$home" "$base/ascend-toolkit/latest"
echo Version=1.72.T2.100.B020 > "$base/driver/version.info"
echo Version=1.72.T5.0.B050 > "$base/firmware/version.info"
echo version=8.0.RC1 > "$home/$(uname -m)-linux/ascend_toolkit_install.info"
printf 'UserName=HwHiAiUser\nUserGroup=HwHiAiUser\nDriver_Install_Path_Param=%s\nFirmware_Install_Path_Param=%s\n' "$base" "$base" > /etc/ascend_install.info

# On ascend-b the firmware came first.
first=Driver second=Firmware
[ "$1" = ascend-a ] || first=Firmware second=Driver
for step in "$first:09:51:36" "$second:09:53:32"; do
    echo "[${step%%:*}] [2025-03-31 ${step#*:}] [INFO]${step%%:*} package installed successfully! Reboot needed for installation/upgrade to take effect!"
done > /var/log/ascend_seclog/ascend_install.log

cat > /usr/local/bin/npu-smi <<'PROGRAM'
#!/bin/sh
[ "$*" = info ] && exec cat /srv/npu-smi.txt
exit 1
PROGRAM
# hccn_tool -i N -ip -g. Each device of a host is on a network of its own.
cat > "$base/driver/tools/hccn_tool" <<PROGRAM
#!/bin/sh
[ "\$1 \$3 \$4" = "-i -ip -g" ] || exit 1
echo "ipaddr:10.1.\$2.$([ "$1" = ascend-a ] && echo 1 || echo 2)"
echo netmask:255.255.255.0
PROGRAM
chmod 0755 /usr/local/bin/npu-smi "$base/driver/tools/hccn_tool"
