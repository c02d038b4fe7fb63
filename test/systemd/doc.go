// Package systemd checks what is installed on hosts: the unit, the default configuration, and the
// files for modules and sysctls.
//
// Most of it is done by a real systemd. A machine is systemd as the init of process, mount,
// host-name, IPC and control-group namespaces of its own, in a network namespace of a lab, on this
// machine's files under an overlay; what make install installs is copied over them. The unit runs
// there as it is shipped, with all that it is denied. Of this machine's own units none starts but
// the journal and the two that load modules and set sysctls; a sysctl that is not of a network
// namespace can't be changed in there. It needs root and cgroup2, no emulation and no container
// runtime.
//
// What it can't show: devices, udev, and the units of a distribution's firewall or network, for
// which there are stand-ins.
package systemd
