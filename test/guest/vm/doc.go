// Package vm boots a disposable virtual machine with Debian's stock kernel on the root file system
// of this machine, and runs one command in it as root. It serves hosts whose kernels lack IPVS,
// which are common among containers and small virtual machines. The stock kernel has IPVS with all
// its schedulers, and SCTP, IPIP and dummy devices.
//
// A run has these steps. apt-get downloads the newest kernel package into a cache folder, where it
// is unpacked but never installed. The folder has the name of the package and its version, and gets
// that name only when it is complete. A small initial root file system, made for each run, loads
// the modules that reach this machine's files. They are served read-only over 9p, below a tmpfs
// overlay: the guest sees every file, and its changes are lost, except below Options.Writable. Then
// the command starts in the same folder as here, with the same environment. Its stdout, stderr and
// exit status each return through a virtual serial port. /run, /dev, /proc and /sys are the guest's
// own, and its only network device is lo.
//
// qemu emulates the machine (TCG), which needs no privilege and works everywhere; code runs about
// 15 times slower, and a boot lasts 10 seconds. KVM is used only after a trial boot with a short
// time limit has shown that it works: on some hosts /dev/kvm exists and can be opened, but then
// hangs. The result is kept in the cache until the host boots again.
//
// An emulated machine with one processor has its own clock. While it works, an instruction lasts a
// nanosecond; while it waits, its time follows the host's. So a slow or busy host does not prolong
// anything in the guest's own time, and limits in it need little slack (wait.SlownessVar is 3). A
// busy second in the guest lasts three to five seconds of the host's time, or more on a busy host.
// The guest's date lags behind accordingly. With several processors, which can't count together, it
// uses the host's clock, and wait.SlownessVar is 10.
//
// The guest has no network, terminal or input, and its only architecture is amd64.
package vm
