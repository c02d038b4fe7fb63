package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	"vipd/dataplane/internal/rtnl"
	"vipd/dataplane/internal/runfile"
)

// Host implements dataplane.Host. Of its methods, Problems, Addresses, LocalAddresses, FollowAddresses and Alerts may be
// called by any goroutine at any time; the others by one at a time.
type Host struct {
	opts Options
	log  *slog.Logger
	kernel
	guard  *guard.Guard
	ledger *ledger
	known
	device holder
	demand
	todo
	routes
	announcements
	tuning

	// added are the ledger's addresses, for readers in other goroutines.
	added snap.Map[netip.Addr, string]
	// held says of every address in want or applied who holds it.
	held snap.Map[netip.Addr, Held]
	// mode is what SetMode said last.
	mode atomic.Pointer[dataplane.Needs]
	// busy gets the errors of the addresses that are being added while the mode writes its rules; nil means that none are.
	busy chan error
	// mended is what others had changed and was mended, for Mended.
	mended []string
	// inherited: the ledger of an earlier process had addresses when this one began.
	inherited bool
	public    atomic.Pointer[public]
}

// kernel is by what a Host reads and changes the kernel.
type kernel struct {
	nl     *netlink.Handle
	sys    sysctls
	events *events
	alerts alerts
	// batches is for addresses and routes, which are many.
	batches *rtnl.Batches
	// newLink describes the device to make.
	newLink func(name string) netlink.Link
	// readView reads everything that the view is made of.
	readView func(*netlink.Handle) (view, error)
}

// known is what is known of the host's devices and addresses.
type known struct {
	view view
	// full: nothing is known of the kernel; the next look reads everything.
	full bool
	// stale: events were lost, so the view has to be read again.
	stale bool
	// downed: the device that holds the VIPs went down since the last look.
	downed bool
	// relinked: devices may have changed since the guards heard of them.
	relinked bool
	// gateways are by which the host reached the world when addresses were added last: none of these is.
	gateways []netip.Addr
}

// demand is what the engine asked for: want, standings and wanted with the last Prepare, applied with the last Finish.
type demand struct {
	want      snap.Map[netip.Addr, int]
	standings snap.Map[netip.Addr, balancer.Standing]
	wanted    snap.Map[balancer.Key, *balancer.Frontend]
	applied   snap.Map[balancer.Key, *balancer.Frontend]
	// appliedAt counts the VIPs of applied.
	appliedAt map[netip.Addr]int
}

// todo are the addresses about which something is left to do.
type todo struct {
	// dirty ones have to be looked at again by the next Prepare, and leaving ones by the next Finish.
	dirty, leaving map[netip.Addr]bool
	// retry ones could not be added; the engine says when they are tried again.
	retry map[netip.Addr]bool
	// without6 ones could not be added, as their device has IPv6 disabled.
	without6 map[netip.Addr]bool
	// late ones are added by Finish, once a frontend with an endpoint is applied on them.
	late map[netip.Addr]bool
	// pending ones were added by vipd and have had no applied frontend since. Until they have, they do not answer and are
	// not announced.
	pending map[netip.Addr]bool
}

var (
	_ dataplane.Host = (*Host)(nil)
)

// public is what other goroutines may see.
type public struct {
	standings snap.Map[netip.Addr, balancer.Standing]
	held      snap.Map[netip.Addr, Held]
	added     snap.Map[netip.Addr, string]
	wanted    snap.Map[balancer.Key, *balancer.Frontend]
	other     []balancer.Problem
}

// New opens what a Host needs of the kernel; it changes nothing. What an earlier process left according to the ledger
// is taken over.
func New(o Options) (*Host, error) {
	o = o.withDefaults()
	h := &Host{
		opts: o, log: o.Log,
		kernel: kernel{sys: procSysctls{}, readView: readView, newLink: func(name string) netlink.Link {
			return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, Alias: deviceAlias}}
		}},
		known:  known{full: true, view: view{addrs: map[netip.Addr][]local{}, devices: map[int]device{}}},
		demand: demand{appliedAt: map[netip.Addr]int{}},
		todo: todo{
			dirty: map[netip.Addr]bool{}, leaving: map[netip.Addr]bool{}, retry: map[netip.Addr]bool{}, pending: map[netip.Addr]bool{}, late: map[netip.Addr]bool{},
			without6: map[netip.Addr]bool{},
		},
		routes: routes{
			routed: map[netip.Addr]netip.Addr{}, unrouted: map[netip.Addr]string{}, arriving: map[netip.Addr]bool{}, shadowed: map[netip.Addr]bool{},
		},
		announcements: announcements{unannounced: map[netip.Addr]bool{}},
	}
	if err := h.readLedger(); err != nil {
		h.log.Warn("not all of the ledger can be used: addresses on devices of others that it does not name count as the host's own", "err", err)
	}
	var system unix.Utsname
	err := unix.Uname(&system)
	if err != nil {
		return nil, fmt.Errorf("asking for the kernel's version: %w", err)
	}
	h.release = unix.ByteSliceToString(system.Release[:])
	if h.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, fmt.Errorf("opening a route socket: %w", err)
	}
	if h.batches, err = rtnl.Open(); err != nil {
		h.nl.Close()
		return nil, err
	}
	if h.events, err = openEvents(); err != nil {
		h.nl.Close()
		return nil, errors.Join(err, h.batches.Close())
	}
	if h.alerts, err = openAlerts(); err != nil {
		h.nl.Close()
		return nil, errors.Join(err, h.batches.Close(), h.events.Close())
	}
	h.SetMode(o.Mode)
	h.guard = guard.New(o.Guard())
	for a := range h.ledger.Addresses {
		h.added = h.added.Set(a, h.ledger.Addresses[a])
		h.guard.Hold(a, 1)
	}
	h.inherited = len(h.ledger.Addresses) > 0
	h.publish()
	return h, nil
}

func (h *Host) readLedger() (err error) {
	boot, namespace, untold := runfile.Stamp()
	h.ledger, err = loadLedger(h.opts.RunDir, boot, namespace)
	return errors.Join(err, untold)
}

// Inherited reports whether an earlier process has left addresses that were still held when this one began.
func (h *Host) Inherited() bool { return h.inherited }

// Close closes what New opened; what is held stays.
func (h *Host) Close() error {
	failed := h.await()
	h.guard.Close()
	h.nl.Close()
	return errors.Join(failed, h.events.Close(), h.batches.Close(), h.alerts.close())
}

// Refuse has the addresses that vipd holds refuse new connections, while what is established goes on: for the time in
// which a dataplane is closed, when no other program is to answer in its place. Release follows.
func (h *Host) Refuse(ctx context.Context) error { return h.Prepare(ctx, balancer.Desired{}) }

// Release removes all that this Host holds and made, as if nothing were wanted: the addresses first, which refuse new
// connections by then, and the guard after them.
func (h *Host) Release(ctx context.Context) error {
	h.Resync(true)
	none := balancer.Desired{}
	return errors.Join(h.Prepare(ctx, none), h.Finish(ctx, none.Frontends))
}

// familyOf returns 0 for IPv4 and 1 for IPv6.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// Prepare makes restrictions and addresses of what is wanted. Where the mode forwards, many addresses may still be on
// their way when it returns; Finish waits for them.
func (h *Host) Prepare(ctx context.Context, want balancer.Desired) error {
	if err := h.await(); err != nil {
		return err
	}
	if err := h.updateView(); err != nil {
		return err
	}
	h.downed = false
	for _, c := range snap.Diff(h.wanted, want.Frontends) {
		h.weigh(c, false)
	}
	for a := range snap.Diff(h.want, want.Addresses) {
		h.dirty[a], h.leaving[a] = true, true
	}
	for a, c := range snap.Diff(h.standings, want.Standings) {
		h.dirty[a] = true
		h.closeOwned(a, c)
	}
	h.want, h.standings, h.wanted = want.Addresses, want.Standings, want.Frontends
	h.obey()
	return errors.Join(h.holdWanted(ctx), ctx.Err())
}

// closeOwned has the guard keep this host silent about an address that vipd owner brings, until it is here, and close the host's own
// ports on it.
func (h *Host) closeOwned(a netip.Addr, c snap.Change[balancer.Standing]) {
	if c.Old == balancer.Owned {
		h.guard.Own(a, -1)
	}
	if c.New == balancer.Owned {
		h.guard.Own(a, 1)
	}
}

// weigh counts what a frontend puts into the guard's sets.
func (h *Host) weigh(c snap.Change[*balancer.Frontend], applied bool) {
	if c.HadOld {
		h.guard.Want(c.Old, -1, applied)
	}
	if c.HasNew {
		h.guard.Want(c.New, 1, applied)
	}
}

// Finish opens what was applied, and removes the addresses that nothing needs.
func (h *Host) Finish(ctx context.Context, applied snap.Map[balancer.Key, *balancer.Frontend]) error {
	all := []error{h.await()}
	for _, c := range snap.Diff(h.applied, applied) {
		h.weigh(c, true)
		h.count(c.Old, -1)
		h.count(c.New, 1)
	}
	h.applied = applied
	all = append(all, h.removeUnneeded(ctx), h.holdLate(ctx))
	for a := range h.pending {
		if h.appliedAt[a] > 0 {
			h.setPending(a, false)
		}
	}
	h.pending = dataplane.Shrink(h.pending)
	all = append(all, h.guard.Finish(ctx))
	h.announceAll()
	all = append(all, h.clear(), h.ledger.save())
	h.publish()
	return errors.Join(all...)
}

// setPending makes an address silent that is about to be added, or ends that.
func (h *Host) setPending(a netip.Addr, pending bool) {
	if h.pending[a] == pending {
		return
	}
	by := 1
	if h.pending[a] = pending; !pending {
		by = -1
		delete(h.pending, a)
	}
	h.guard.Silence(a, by)
}

// count keeps the number of applied frontends on each VIP.
func (h *Host) count(f *balancer.Frontend, by int) {
	if f == nil || f.NodePort {
		return
	}
	if h.appliedAt[f.Addr] += by; h.appliedAt[f.Addr] <= 0 {
		delete(h.appliedAt, f.Addr)
		h.leaving[f.Addr] = true
	}
}

// needed reports whether the address is wanted, or a frontend on it is still there.
func (h *Host) needed(a netip.Addr) bool { return h.want.Has(a) || h.appliedAt[a] > 0 }

// Ready implements dataplane.Host: a frontend with source ranges is not applied before the guard of its family stands and
// knows it. An address that vipd adds waits for the guard itself, but those of the host, of node ports, and those that
// are routed to it are there anyway. Where the guard is unavailable, only a dataplane that restricts by itself serves it; what
// was served within the same source ranges before goes on.
func (h *Host) Ready(c dataplane.Change, enforced bool) error {
	return h.guard.Ready(c, enforced)
}

// Resync makes the next Prepare and Finish compare the guard with the kernel in full, and with addresses also these. Without, they
// are as the kernel's events tell.
func (h *Host) Resync(addresses bool) {
	h.full = h.full || addresses
	h.ledger.changed = true // its file may have been removed
	h.guard.Resync()
}

// publish shows the state to other goroutines.
func (h *Host) publish() {
	p := &public{held: h.held, added: h.added, standings: h.standings, wanted: h.wanted, other: slices.Concat(h.arp, h.unforwarded, h.untuned, h.unfinished(), h.guard.Problems())}
	h.public.Store(p)
}

// Problems says which VIPs are not local, and which parts of the guard and which sysctls are unavailable.
func (h *Host) Problems() []balancer.Problem {
	p := h.public.Load()
	out := p.other[:len(p.other):len(p.other)]
	for _, held := range p.held.All() {
		if held.Where == nowhere && held.Standing == "" && h.opts.Bind {
			out = append(out, notLocal(held, p.wanted))
		}
	}
	return out
}

// Addresses says of every VIP in use who holds it, in the order of addresses.
func (h *Host) Addresses() []Held {
	p := h.public.Load()
	out := make([]Held, 0, p.held.Len())
	for _, held := range p.held.All() {
		out = append(out, held)
	}
	return out
}
