package doctor

import (
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// missingIPVS returns the likely reason why this process can't use IPVS, and a command that fixes
// it. It returns "" for both if it finds no reason.
func missingIPVS(s System) (why, fix string) {
	const netAdmin, sysModule = 12, 16 // CAP_NET_ADMIN and CAP_SYS_MODULE in the kernel's include/uapi/linux/capability.h
	const outside = "modprobe ip_vs  # on the host of this container"
	switch {
	case s.nested():
		return "this process is in a user namespace, in which no process may change virtual servers",
			"sudo vipctl doctor  # on the host itself, or in a container without a user namespace"
	case !s.capable(netAdmin):
		return "this process may not change the network (CAP_NET_ADMIN)", "docker run --cap-add NET_ADMIN --network host ...  # also for this container"
	case s.module("ip_vs") == loaded:
		return "", ""
	case s.module("ip_vs") == loadable && !s.capable(sysModule):
		return "the module ip_vs is not loaded, and this process may not load modules (CAP_SYS_MODULE)", outside
	case s.module("ip_vs") == loadable:
		return "the module ip_vs is not loaded", "modprobe ip_vs"
	case s.contained():
		return "the module ip_vs is not loaded, and this container has no module to load", outside
	}
	return "this kernel was built without the module ip_vs", s.packaged("ip_vs")
}

// contained reports whether this process is running in a container, which it detects by files that
// container engines create.
func (s System) contained() bool {
	return slices.ContainsFunc([]string{"/.dockerenv", "/run/.containerenv", "/run/systemd/container"}, s.exists)
}

// nested reports whether this process is in a user namespace other than the host's.
func (s System) nested() bool {
	ids := strings.Fields(s.text("/proc/self/uid_map"))
	return len(ids) > 0 && !slices.Equal(ids, []string{"0", "0", "4294967295"})
}

// capable reports whether this process has the capability with this number. It returns true if that
// is unknown.
func (s System) capable(number int) bool {
	for line := range strings.Lines(s.text("/proc/self/status")) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			return err != nil || bits&(1<<number) != 0
		}
	}
	return true
}

// packaged returns a command that installs a missing module or finds its package. On an unknown
// distribution, the command shows whether the kernel was built with IPVS.
func (s System) packaged(module string) string {
	release := s.release()
	system := s.text("/etc/os-release")
	isDistribution := func(id string) bool {
		return slices.ContainsFunc(strings.Split(system, "\n"), func(line string) bool {
			name, value, _ := strings.Cut(line, "=")
			return (name == "ID" || name == "ID_LIKE") && slices.Contains(strings.Fields(strings.Trim(value, `"`)), id)
		})
	}
	switch {
	case isDistribution("ubuntu"):
		return "apt-get install linux-modules-extra-" + release
	case isDistribution("debian"):
		return "apt-get install linux-image-" + runtime.GOARCH + "  # and boot it"
	case isDistribution("fedora"), isDistribution("rhel"):
		return "dnf provides '*/" + module + ".ko*'"
	}
	return "grep CONFIG_IP_VS /boot/config-" + release
}
