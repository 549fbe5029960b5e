#!/bin/sh
# Makes a root directory with devward bootable for tests; runs in it, by chroot. /mnt is the directory of this script.

set -e

mkdir -p /opt/vm
cp /mnt/guest/*.py /mnt/devward_*_all.deb /opt/vm/
echo vm >/etc/hostname
: >/etc/fstab

cat >/etc/systemd/system/vm-agent.service <<'END'
[Unit]
Description=Runs what the test asks for
DefaultDependencies=no
After=systemd-udevd.service local-fs.target

[Service]
ExecStartPre=/sbin/modprobe virtio_console
ExecStartPre=/bin/sh -c 'until [ -e /dev/virtio-ports/agent ]; do sleep 0.1; done'
ExecStart=/usr/bin/python3 -I /opt/vm/agent.py /dev/virtio-ports/agent
Environment=LC_ALL=C.UTF-8 HOME=/root SYSTEMD_PAGER= SYSTEMD_COLORS=0
# What a test leaves to run is stopped by that test.
KillMode=process
OOMScoreAdjust=-1000

[Install]
WantedBy=sysinit.target
END

# Stand-ins for what devward is ordered before, beside podman's real units. Each keeps what the CDI file was when it started.
for name in containerd docker kubelet; do
    cat >/etc/systemd/system/$name.service <<'END'
[Unit]
Description=Stands in for the real one

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/sh -c 'cat /etc/cdi/hyperlight.dev-hypervisor.json >/run/seen-by-%N 2>&1 || true'

[Install]
WantedBy=multi-user.target
END
done

# Each instruction is emulated here. The limit as it is shipped is tried in a test of its own.
mkdir -p /etc/systemd/system/devward.service.d
printf '[Service]\nTimeoutStartSec=150\n' >/etc/systemd/system/devward.service.d/slow-machine.conf

# Else udev loads it by the processor's features at some moment of the boot, which may be after the engines have started.
echo kvm_amd >/etc/modules-load.d/kvm.conf

# What containers run in: the machine's own programs, mounted by the test.
mkdir -p /opt/vm/rootfs
(cd /opt/vm/rootfs && mkdir dev etc opt proc run sys tmp usr && for name in bin sbin lib lib64; do ln -s usr/$name $name; done)

systemctl --quiet enable vm-agent containerd docker kubelet podman podman-restart
# What takes time at boot, and at each reload of the service manager, and has no part in this.
mkdir -p /etc/systemd/system-generators
for path in /usr/lib/systemd/system-generators/* /lib/systemd/system-generators/*; do
    ln -sf /dev/null "/etc/systemd/system-generators/$(basename "$path")"
done
systemctl --quiet mask getty@tty1 serial-getty@ttyS0 e2scrub_reap apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer \
    e2scrub_all.timer fstrim.timer podman-auto-update.service podman-auto-update.timer systemd-tmpfiles-clean.timer \
    modprobe@drm modprobe@efi_pstore modprobe@configfs systemd-binfmt proc-sys-fs-binfmt_misc.automount
