package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"vipd/cmd/internal/config"
	"vipd/cmd/internal/folder"
	"vipd/cmd/internal/sockets"
	"vipd/dataplane/host"
	"vipd/dataplane/ipvs"
)

// ThisHost returns a Host whose functions read this host and this process's network namespace. The
// caller must set the other fields, such as the configuration.
func ThisHost() Host {
	const notLinux = runtime.GOOS != "linux"
	return Host{System: System{
		Root: notLinux || os.Geteuid() == 0, NotLinux: notLinux, Interfaces: interfaces, ReadFile: os.ReadFile, Look: exec.LookPath, Run: runProgram, Owners: sockets.Owners,
		Words: words, Refused: func(c config.Config) []folder.Refusal { return folder.Refused(c.RunDir, c.StateDir, c.API.Socket) },
		ServerTimeout: ipvs.TCPTimeout,
	}, Link: Link{Neighbor: host.NeighborAt}}
}

// interfaces lists the devices of this host.
func interfaces() ([]Interface, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var all []Interface
	for _, d := range devices {
		_, notBridge := os.Stat("/sys/class/net/" + d.Name + "/bridge")
		i := Interface{Name: d.Name, Bridge: notBridge == nil}
		ports, _ := filepath.Glob("/sys/class/net/" + d.Name + "/brif/*/hairpin_mode") // fails only for invalid patterns
		for _, port := range ports {
			if on, err := os.ReadFile(port); err == nil && strings.TrimSpace(string(on)) == "0" {
				i.OneWay = append(i.OneWay, filepath.Base(filepath.Dir(port)))
			}
		}
		addrs, err := d.Addrs()
		if err != nil {
			continue // the device was removed since it was listed
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.Addrs = append(i.Addrs, p.Addr().Unmap().WithZone(""))
				if !p.IsSingleIP() && !p.Addr().IsLoopback() && !p.Addr().IsLinkLocalUnicast() {
					i.Networks = append(i.Networks, p.Masked())
				}
			}
		}
		all = append(all, i)
	}
	return all, nil
}

// runProgram runs a program, and returns its standard output. If the program fails, the error
// contains its standard error.
func runProgram(ctx context.Context, program string, args ...string) (string, error) {
	path, err := exec.LookPath(program)
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(ctx, path, args...).Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && len(exit.Stderr) > 0 {
		return string(out), fmt.Errorf("%s: %s", program, strings.TrimSpace(string(exit.Stderr)))
	}
	return string(out), err
}

// words returns the arguments and the environment of a program's first process, or nil if the
// program is not running.
func words(program string) []string {
	processes, _ := filepath.Glob("/proc/[0-9]*/comm") // fails only for invalid patterns
	for _, p := range processes {
		if name, err := os.ReadFile(p); err != nil || strings.TrimSpace(string(name)) != program {
			continue
		}
		args, err := os.ReadFile(filepath.Join(filepath.Dir(p), "cmdline"))
		environment, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "environ")) // only root can read another user's
		// A zombie process has no arguments.
		if err == nil && len(args) > 0 {
			return strings.FieldsFunc(string(args)+"\x00"+string(environment), func(r rune) bool { return r == 0 })
		}
	}
	return nil
}
