package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/folder"
)

// Interface is a network device of the host.
type Interface struct {
	Name string
	// Bridge reports whether the device is a bridge of the kernel.
	Bridge bool
	// OneWay lists the ports of a bridge whose hairpin mode is off: they never send a packet back
	// through the port by which it arrived.
	OneWay []string
	Addrs  []netip.Addr
	// Networks are the networks that are connected to the device.
	Networks []netip.Prefix
}

// System is the operating system of a host: its files, programs and devices.
type System struct {
	// Root reports whether this process may read rules and try modes.
	Root bool
	// NotLinux reports whether the host runs another system, without the files that most checks
	// read.
	NotLinux bool
	// Interfaces lists the devices of the host.
	Interfaces func() ([]Interface, error)
	// ReadFile reads a file of /proc, /sys, /lib/modules or /etc.
	ReadFile func(path string) ([]byte, error)
	// Look finds a program, and Run runs a program and returns its standard output.
	Look func(program string) (string, error)
	Run  func(ctx context.Context, program string, args ...string) (string, error)
	// Owners returns the programs that own sockets, by inode, as far as this process can see them.
	Owners func() map[string]string
	// Own returns the sockets of this process, by inode, if it is the daemon. It is nil in other
	// programs.
	Own func() map[string]bool
	// Refused returns the directories in a configuration that prevent vipd from starting.
	Refused func(config.Config) []folder.Refusal
	// Words returns the arguments and environment of a running program, or nothing if it does not
	// seem to run.
	Words func(program string) []string
	// ServerTimeout returns how long IPVS remembers open TCP connections without packets.
	ServerTimeout func(context.Context) (time.Duration, error)
}

// runs reports whether a program seems to run.
func (s System) runs(program string) bool { return len(s.Words(program)) > 0 }

// has reports whether a program is installed.
func (s System) has(program string) bool {
	_, err := s.Look(program)
	return err == nil
}

// exists reports whether a file can be read.
func (s System) exists(path string) bool {
	_, err := s.ReadFile(path)
	return err == nil
}

// text reads a file without surrounding white space; it returns "" if the file can't be read.
func (s System) text(path string) string {
	text, err := s.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// sysctl reads a setting such as net.ipv4.ip_forward. It returns "" if the kernel does not have it.
func (s System) sysctl(name string) string {
	return s.text("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
}

// release returns the version of the running kernel, as uname -r prints it.
func (s System) release() string { return s.text("/proc/sys/kernel/osrelease") }

// kernelSince reports whether the kernel is known to have this version or a later version.
func (s System) kernelSince(major, minor int) bool {
	var version [2]int
	_, err := fmt.Sscanf(s.release(), "%d.%d", &version[0], &version[1])
	return err == nil && slices.Compare(version[:], []int{major, minor}) >= 0
}

// presence describes whether the kernel has a module.
type presence int

const (
	// unseen means that neither the kernel nor a list of modules has the module. It may still exist
	// in a kernel that lists no modules.
	unseen presence = iota
	// loadable means that the kernel loads it on request.
	loadable
	// loaded means that the module is loaded or built in.
	loaded
)

// module returns whether the kernel has a module.
func (s System) module(name string) presence {
	if s.exists("/sys/module/"+name+"/uevent") || s.exists("/sys/module/"+name+"/refcnt") {
		return loaded
	}
	folder := "/lib/modules/" + s.release() + "/"
	file := "/" + name + ".ko"
	switch {
	case strings.Contains(s.text(folder+"modules.builtin"), file):
		return loaded
	case strings.Contains(s.text(folder+"modules.dep"), file):
		return loadable
	}
	return unseen
}
