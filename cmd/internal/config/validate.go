package config

import (
	"cmp"
	"fmt"
	"math"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/store/etcd"
)

// validate returns what the fields' types alone can't refuse, and what this version of the program does not do.
func (c *Config) validate() []balancer.Problem {
	var problems []balancer.Problem
	add := func(severity balancer.Severity, field, format string, args ...any) {
		problems = append(problems, balancer.Problem{Severity: severity, Field: field, Text: fmt.Sprintf(format, args...)})
	}
	wrong := func(field, format string, args ...any) { add(balancer.SeverityError, field, format, args...) }
	for field, path := range map[string]string{"state_dir": c.StateDir, "run_dir": c.RunDir, "api.socket": c.API.Socket} {
		if path == "" {
			wrong(field, "is empty; write a path, or leave the field out for the default")
		}
	}
	// The kernel takes 15 bytes for an interface and 107 for the path of a Unix socket (IFNAMSIZ, sockaddr_un).
	if n := len(c.Addresses.Interface); n == 0 || n > 15 || strings.ContainsAny(c.Addresses.Interface, "/ \t\n:") {
		wrong("addresses.interface", "%q is not an interface's name: it has 1 to 15 characters, none of them a space, / or :", c.Addresses.Interface)
	}
	if n := len(c.API.Socket); n > 107 {
		wrong("api.socket", "is %d bytes long; a Unix socket's path has at most 107", n)
	}
	if c.API.HTTP != "" && !isListen(c.API.HTTP) {
		wrong("api.http", `%q is not ADDRESS:PORT, such as "127.0.0.1:9890"; "" turns it off`, c.API.HTTP)
	}
	later := func(field, what string) {
		add(balancer.SeverityNearest, field, "%s is not part of this version", what)
	}
	if c.Tracing.OTLPEndpoint != "" {
		later("tracing.otlp_endpoint", "tracing")
	}
	if c.Store.Kind != EtcdStore && !reflect.DeepEqual(c.Etcd, Default().Etcd) {
		add(balancer.SeverityWarning, "etcd", "is for vipctl alone: vipd follows etcd where store.kind is \"etcd\"")
	}
	for _, err := range c.etcdErrors() {
		field, text, _ := strings.Cut(err.Error(), ": ")
		if text == "" || strings.Contains(field, " ") {
			wrong("etcd", "%s", err)
		} else {
			wrong("etcd."+field, "%s", text)
		}
	}
	for field, d := range map[string]time.Duration{
		"ipvs.tcp_timeout": c.IPVS.TCPTimeout, "ipvs.tcpfin_timeout": c.IPVS.TCPFinTimeout, "ipvs.udp_timeout": c.IPVS.UDPTimeout,
	} {
		if why := notKernelTimeout(d); why != "" {
			wrong(field, "%s %s; whole seconds from 1s to %s are possible, and 0s leaves the kernel's", d, why, longestTimeout)
		}
	}
	slices.SortStableFunc(problems, func(a, b balancer.Problem) int { return cmp.Compare(a.Field, b.Field) })
	return problems
}

// longestTimeout is the longest that IPVS takes on every kernel: INT_MAX ticks, of which there are at most 1000 a second
// (ip_vs_set_timeout in the kernel's ip_vs_ctl.c).
const longestTimeout = math.MaxInt32 / 1000 * time.Second

// notKernelTimeout says why IPVS can't have the time-out d; "": it can. The kernel counts in seconds, and takes 0 as
// leave it as it is; what is negative was refused with the field's type.
func notKernelTimeout(d time.Duration) string {
	switch {
	case d%time.Second != 0:
		return "is no whole number of seconds, in which the kernel counts"
	case d > longestTimeout:
		return "is longer than the kernel can count"
	}
	return ""
}

// etcdErrors are what is wrong with how etcd is reached.
func (c *Config) etcdErrors() []error {
	err := etcd.Config(c.Etcd).Check()
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		return all.Unwrap()
	}
	return nil
}

func isListen(text string) bool {
	_, port, err := net.SplitHostPort(text)
	if err != nil {
		return false
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return err == nil && n <= 65535
}
