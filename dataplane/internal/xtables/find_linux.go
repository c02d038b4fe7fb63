package xtables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"

	"vipd/dataplane/internal/inet"
)

// Find returns a family's tool. Auto selects the variant that contains the host's other rules. If
// both or neither contain rules, Auto selects the variant of the program "iptables". A trial chain
// must prove that the tool works. If it does not work, the error is an [UnsupportedError] with
// advice. If another program held the tables for too long, the error satisfies IsBusy.
func Find(ctx context.Context, family inet.Family, variant Variant, log *slog.Logger) (*Tool, error) {
	f := finder{family: family, run: execute, look: exec.LookPath, loaded: legacyTables, privileged: privileged}
	tool, err := f.find(ctx, variant)
	if err != nil {
		return nil, err
	}
	if err := tool.Restore(ctx, Trial("filter")); err != nil {
		return nil, f.unsupported(tool.program, err)
	}
	log.Debug("found iptables", "family", family, "program", tool.program, "backend", tool.variant)
	return tool, nil
}

// Existing returns a family's tools for every variant that may contain rules. It writes nothing.
// Its callers remove an earlier process's rules from every variant.
func Existing(ctx context.Context, family inet.Family) []*Tool {
	f := finder{family: family, run: execute, look: exec.LookPath, loaded: legacyTables, privileged: privileged}
	var tools []*Tool
	for _, variant := range []Variant{NFT, Legacy} {
		if variant == Legacy && len(f.loaded(family)) == 0 {
			continue
		}
		if tool, err := f.find(ctx, variant); err == nil {
			tools = append(tools, tool)
		}
	}
	return tools
}

// finder implements Find. Tests set its fields to replace the environment.
type finder struct {
	family inet.Family
	run    command
	look   func(program string) (path string, err error)
	// loaded returns the legacy tables that are loaded in this network namespace.
	loaded     func(inet.Family) []string
	privileged func() bool
}

func (f *finder) find(ctx context.Context, variant Variant) (*Tool, error) {
	tool := &Tool{family: f.family, variant: variant, why: "configured", run: f.run}
	tool.reader = sync.OnceValues(func() (*iptables.IPTables, error) { return newReader(tool) })
	switch variant {
	case NFT, Legacy:
		tool.program = f.program(variant)
		if _, err := f.look(tool.program); err != nil {
			// Some systems have only the programs without a suffix.
			if of, plainErr := f.plainVariant(ctx); plainErr != nil || of != variant {
				return nil, f.unsupported(tool.program, err)
			}
			tool.program = f.family.Program()
		}
	case Auto:
		plain, err := f.plainVariant(ctx)
		if err != nil {
			return nil, f.unsupported(f.family.Program(), err)
		}
		tool.program = f.family.Program()
		tool.variant = plain
		tool.why = "the host's other rules use it"
		if f.inUse(ctx, tool.program, plain) {
			break
		}
		if other := plain.other(); f.inUse(ctx, f.program(other), other) {
			tool.program, tool.variant = f.program(other), other
			break
		}
		tool.why = "the default of " + tool.program
	default:
		return nil, fmt.Errorf("unknown iptables backend %q: use auto, nft or legacy", variant)
	}
	return tool, nil
}

// plainVariant returns the variant of the program without a suffix, such as "iptables".
func (f *finder) plainVariant(ctx context.Context) (Variant, error) {
	program := f.family.Program()
	if _, err := f.look(program); err != nil {
		return "", err
	}
	stdout, stderr, err := f.run(ctx, "", program, "--version")
	if err != nil {
		return "", failure(program, "", stderr, err)
	}
	if strings.Contains(stdout, "nf_tables") {
		return NFT, nil
	}
	return Legacy, nil // versions before 1.8 support only legacy, and do not report the variant
}

// inUse reports whether other programs have rules in the variant. In the legacy variant, it reads
// only loaded tables, because reading a table loads it.
func (f *finder) inUse(ctx context.Context, program string, variant Variant) bool {
	if _, err := f.look(program + "-save"); err != nil {
		return false
	}
	if variant == NFT {
		stdout, _, err := f.run(ctx, "", program+"-save")
		return err == nil && hasForeignRules(stdout)
	}
	for _, table := range f.loaded(f.family) {
		stdout, _, err := f.run(ctx, "", program+"-save", "-t", table)
		if err == nil && hasForeignRules(stdout) {
			return true
		}
	}
	return false
}

func hasForeignRules(saved string) bool {
	for line := range strings.Lines(saved) {
		if strings.HasPrefix(line, "-A ") && !strings.Contains(line, "VIPD-") {
			return true
		}
	}
	return false
}

// program returns the name of the family's program for a variant.
func (f *finder) program(b Variant) string { return f.family.Program() + "-" + string(b) }

// unsupported converts err to an error with advice.
func (f *finder) unsupported(feature string, err error) error {
	if _, ok := errors.AsType[*UnsupportedError](err); ok {
		return err
	}
	need := "this kernel lacks iptables' tables: run modprobe -a ip_tables ip6_tables nf_tables, or choose another mode"
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), IsBusy(err):
		return err
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, os.ErrNotExist):
		need = "install iptables: apt-get install iptables"
	case !f.privileged():
		need = "it needs the capabilities CAP_NET_ADMIN and CAP_NET_RAW, and write access to /run/xtables.lock: run as root"
	}
	return &UnsupportedError{Feature: feature, Need: need, Err: err}
}

// HasTable reports whether the table may contain rules. It does not read a table of the legacy
// variant, because that would load the table, which slows down all packets.
func (t *Tool) HasTable(table string) bool {
	return t.variant == NFT || slices.Contains(legacyTables(t.family), table)
}

// legacyTables returns the tables that are loaded in the calling thread's network namespace.
func legacyTables(family inet.Family) []string {
	file := "/proc/thread-self/net/ip_tables_names"
	if family == inet.IPv6 {
		file = "/proc/thread-self/net/ip6_tables_names"
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil // not loaded or not readable, which the trial will reveal
	}
	return strings.Fields(string(text))
}

// privileged reports whether this process may write netfilter's tables.
func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.Geteuid() == 0
	}
	const both = 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	return data[0].Effective&both == both
}
