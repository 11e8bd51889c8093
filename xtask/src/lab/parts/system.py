"""That the lab is what the other parts take it for."""

import os

from lab import check, main, run, same


@check
def systemd_runs_the_machine_and_nothing_has_failed():
    same(run("systemctl", "is-system-running", "--wait").out, "running\n")


@check
def there_is_cgroup_v2_and_no_other():
    same(run("stat", "-f", "-c", "%T", "/sys/fs/cgroup").ok(), "cgroup2fs\n")
    given = open("/sys/fs/cgroup/cgroup.controllers", encoding="utf-8").read().split()
    assert {"cpu", "memory", "pids"} <= set(given), given


@check
def the_devices_that_virtual_machines_need_are_there():
    for device in ("/dev/kvm", "/dev/net/tun", "/dev/vhost-vsock"):
        os.close(os.open(device, os.O_RDWR))


main()
