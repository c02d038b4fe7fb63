// Package vm boots a throw-away virtual machine with Debian's stock kernel on the root file system
// of this machine, and runs one command in it as root. It is for kernels without IPVS, which are
// common in containers and small virtual machines: the stock kernel has it, with all its
// schedulers, and SCTP, IPIP and dummy devices.
//
// A run goes through these steps. The newest kernel package is downloaded with apt-get into a cache
// folder and unpacked there, never installed; the folder is named by the package and its version,
// and appears under that name only once it is whole. A small initial root file system, made anew
// each time, loads the modules to reach this machine's files, which are served read-only over 9p,
// and puts a tmpfs overlay over them: the guest sees every file, and what it writes is lost, except
// below Options.Writable. Then the command starts in the same folder as here, with the same
// environment. Its output comes back through one virtual serial port each for stdout and stderr,
// its exit status through a third. /run, /dev, /proc and /sys are the guest's own, and its only
// network device is lo.
//
// The machine is emulated by qemu (TCG), which needs no privilege and works everywhere; code runs
// about 15 times slower, and a boot takes 10 seconds. KVM is used only after a trial boot with a
// short time limit has shown that it works: on some hosts /dev/kvm is there, opens, and hangs. The
// answer is kept in the cache until the host boots again.
//
// An emulated machine of one processor has a clock of its own: while it works, its time is what it
// executes, a nanosecond an instruction; while all in it wait, its time goes with the host's. So it
// takes no longer in its own time because the host is slow or has other things to do, and to itself
// it seems a fast machine: bounds in it need little slack (wait.SlownessVar is 3). Of the host's
// time a busy second in it is three to five, or more on a host that is busy itself, and its date
// stays behind by that. With several processors, which can't count together, it goes by the host's
// clock, and wait.SlownessVar is 10.
//
// It does not give the guest a network, a terminal or an input, and knows one architecture, amd64.
package vm
