package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/internal/nft"
)

// The fast path is a flowtable. The kernel translates and forwards the packets of connections in
// the flowtable as they arrive, without netfilter and routing. A chain adds our connections to the
// flowtable after their first packets, because the cost does not pay off for short connections. The
// flowtable and its chain are written separately from the other chains, so a kernel without
// flowtables only lacks the fast path.

const (
	// FastPathAuto selects all of the host's devices that are up, except dummies and loopback.
	FastPathAuto = "auto"
	// fastChain and fastDevices are the chain and the set of devices of the flowtable fastTable.
	fastTable, fastChain, fastDevices = "fast", "fast-path", "fast-devices"
	// fastPriority puts the chain behind other programs' filters, so only connections that these
	// filters accept enter the flowtable.
	fastPriority = 10
	// fastAfter is the number of packets after which a connection enters the flowtable.
	fastAfter = 8
)

// fastPath is the fast path of a family.
type fastPath struct {
	// names is Options.FastPath. hardware is Options.FastPathHardware.
	names    []string
	hardware bool
	// present holds the names of devices that exist and may be used.
	present []string
	// due reports whether the kernel's flowtable must be compared with present.
	due bool
	// fault is the reason why there is no flowtable, or nil. refused maps each device that the
	// kernel refused to the error.
	fault   error
	refused map[string]error
}

// serves reports whether the fast path is configured and works in mode m. The flowtable translates
// packets, so the mode's connections must exist only in conntrack.
func (p *fastPath) serves(m dataplane.Needs) bool {
	return len(p.names) > 0 && m.Forward && m.Resets && !m.LocalIn
}

// devices returns the devices that the flowtable should have.
func (p *fastPath) devices() []string {
	if slices.Contains(p.names, FastPathAuto) {
		return p.present
	}
	return slices.DeleteFunc(slices.Clone(p.names), func(name string) bool { return !slices.Contains(p.present, name) })
}

func (p *fastPath) flowtable(devices ...string) *nft.Flowtable {
	return &nft.Flowtable{Name: fastTable, Devices: devices, Hardware: p.hardware}
}

// devicesSet returns the set of devices. The chain requires both devices of a connection to be in
// it, because otherwise only one direction would skip netfilter.
func devicesSet() *nft.Set { return &nft.Set{Name: fastDevices, Key: nft.IifName} }

// writeFastPath writes the flowtable with these devices, and the chain.
func (l *layout) writeFastPath(tx *nft.Tx, bits markBits, p *fastPath, devices ...string) {
	set, chain := devicesSet(), base(fastChain, nft.Filter, nft.Forward, fastPriority)
	tx.AddFlowtable(l.table, p.flowtable(devices...))
	tx.AddSet(l.table, set)
	tx.FlushSet(l.table, set)
	l.addFastDevices(tx, devices)
	tx.AddChain(l.table, &chain)
	tx.FlushChain(l.table, chain.Name)
	tx.AddRule(l.table, chain.Name, rule(
		nft.Bits{Field: nft.CtMark, Mask: bits.ours, Value: bits.ours}, nft.State(nft.Established), nft.Translated{}, nft.MorePackets(fastAfter),
		nft.In{Of: nft.IifName, Set: set}, nft.In{Of: nft.OifName, Set: set}, nft.Offload{To: p.flowtable()},
	))
}

// addFastDevices adds devices to the set. The flowtable must already have these devices. Otherwise
// a connection would count as offloaded even though the flowtable does not see its packets.
func (l *layout) addFastDevices(tx *nft.Tx, names []string) {
	set := devicesSet()
	for _, name := range names {
		tx.Add(l.table, set, nft.Elem{Key: nft.Bytes{}.Name(name)})
	}
}

// deleteFastPath deletes the chain, the set of devices and the flowtable.
func (l *layout) deleteFastPath(tx *nft.Tx) {
	tx.FlushChain(l.table, fastChain)
	tx.DeleteChain(l.table, fastChain)
	tx.DeleteSet(l.table, devicesSet())
	tx.DeleteFlowtable(l.table, &nft.Flowtable{Name: fastTable})
}

func (w *wanted) fastPathProblems() (all []balancer.Problem) {
	p := &w.fast
	warn := func(text string, reason error) {
		problem := w.problem(balancer.SeverityWarning, text, reason)
		problem.Field = "fast_path"
		all = append(all, problem)
	}
	if !p.serves(w.mode) {
		return nil
	}
	if p.fault != nil {
		warn("fast_path has no effect", p.fault)
	}
	for _, name := range slices.Sorted(maps.Keys(p.refused)) {
		warn("fast_path has no effect on "+name, p.refused[name])
	}
	return all
}

// problems returns the problems with fast_path that are the same for both families.
func (p *fastPath) problems(m dataplane.Needs) (all []balancer.Problem) {
	warn := func(format string, args ...any) {
		all = append(all, balancer.Problem{Severity: balancer.SeverityWarning, Field: "fast_path", Text: fmt.Sprintf(format, args...)})
	}
	if len(p.names) > 0 && !p.serves(m) {
		warn(`fast_path has no effect in this mode: it needs mode = "nftables" or "iptables"`)
		return all
	}
	var missing []string
	for _, name := range p.names {
		if name != FastPathAuto && !slices.Contains(p.present, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		warn("fast_path names devices that do not exist: %s", strings.Join(missing, ", "))
	}
	return all
}

// errNoFlowtables says that the kernel does not support flowtables, and what to do.
var errNoFlowtables = errors.New("the kernel has no flowtables: run modprobe -a nf_flow_table nf_flow_table_inet nft_flow_offload and vipctl reload, or remove fast_path")
