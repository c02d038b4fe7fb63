// Package systemd checks the files that are installed on hosts: the unit, the default
// configuration, and the files for modules and sysctls.
//
// A real systemd performs most of the checks. A machine is systemd as init in its own process,
// mount, host-name, IPC and control-group namespaces, in a network namespace of a lab. It has this
// machine's files under an overlay, with the files of make install copied over them. The unit runs
// there as shipped, with all its restrictions. This machine's own units do not start, except the
// journal and the units that load modules and set sysctls. Sysctls that do not belong to a network
// namespace can't be changed in the machine. It needs root and cgroup2, but neither emulation nor a
// container runtime.
//
// It can't test devices, udev, or the units of a distribution's firewall and network. The tests use
// substitutes for these units.
package systemd
