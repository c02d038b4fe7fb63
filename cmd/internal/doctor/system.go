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

// Interface is a network device on the host.
type Interface struct {
	Name string
	// Bridge reports whether the device is a Linux bridge.
	Bridge bool
	// OneWay lists the bridge's ports that have hairpin mode off. The bridge never sends a packet
	// that arrived on one of these ports back through the same port.
	OneWay []string
	Addrs  []netip.Addr
	// Networks lists the networks of the device's addresses, except loopback and link-local
	// networks.
	Networks []netip.Prefix
}

// System is the operating system of a host: its files, programs and devices.
type System struct {
	// Root reports whether this process may read firewall rules and try modes.
	Root bool
	// NotLinux reports whether the host's operating system is not Linux, so it lacks the files that
	// most checks read.
	NotLinux bool
	// Interfaces lists the host's devices.
	Interfaces func() ([]Interface, error)
	// ReadFile reads a file of /proc, /sys, /lib/modules or /etc.
	ReadFile func(path string) ([]byte, error)
	// Look returns the path of a program. Run runs a program and returns its standard output.
	Look func(program string) (string, error)
	Run  func(ctx context.Context, program string, args ...string) (string, error)
	// Owners maps each socket's inode to the name of the program that owns the socket, if this
	// process may see the program.
	Owners func() map[string]string
	// Own returns the inodes of this process's sockets. It is nil unless this process is the
	// daemon.
	Own func() map[string]bool
	// Refused returns the directories in a configuration that vipd refuses to use, because other
	// users could change files in them.
	Refused func(config.Config) []folder.Refusal
	// Words returns the arguments and the environment of a running program, or nil if the program
	// does not seem to be running.
	Words func(program string) []string
	// ServerTimeout returns how long IPVS keeps an established TCP connection without packets.
	ServerTimeout func(context.Context) (time.Duration, error)
}

// runs reports whether a program seems to be running.
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

// text returns a file's content without surrounding white space, or "" if the file can't be read.
func (s System) text(path string) string {
	text, err := s.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// sysctl returns the value of a kernel setting such as net.ipv4.ip_forward. It returns "" if the
// setting can't be read.
func (s System) sysctl(name string) string {
	return s.text("/proc/sys/" + strings.ReplaceAll(name, ".", "/"))
}

// release returns the version of the running kernel, as uname -r prints it.
func (s System) release() string { return s.text("/proc/sys/kernel/osrelease") }

// kernelSince reports whether the kernel has at least this version. It returns false if the version
// is unknown.
func (s System) kernelSince(major, minor int) bool {
	var version [2]int
	_, err := fmt.Sscanf(s.release(), "%d.%d", &version[0], &version[1])
	return err == nil && slices.Compare(version[:], []int{major, minor}) >= 0
}

// presence is a kernel module's availability.
type presence int

const (
	// unseen means that the module is neither loaded nor in a list of modules. Without any lists,
	// it may still be available.
	unseen presence = iota
	// loadable means that the kernel can load the module.
	loadable
	// loaded means that the module is loaded or built in.
	loaded
)

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
