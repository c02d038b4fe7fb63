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
	addresses
	routes
	tuning

	// unheard is the reason why the neighbors have not been told of all addresses.
	unheard string
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

// demand is what the engine asked for: want with the last Prepare, applied with the last Finish.
type demand struct {
	want    balancer.Desired
	applied snap.Map[balancer.Key, *balancer.Frontend]
}

var (
	_ dataplane.Host = (*Host)(nil)
)

// public is what other goroutines may see.
type public struct {
	addresses snap.Map[netip.Addr, shown]
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
		known:     known{full: true, view: view{addrs: map[netip.Addr][]local{}, devices: map[int]device{}}},
		addresses: newAddresses(),
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
		h.showOurs(a, true)
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
	for _, c := range snap.Diff(h.want.Frontends, want.Frontends) {
		h.weigh(c, false)
	}
	for a, c := range snap.Diff(h.want.Addresses, want.Addresses) {
		r := h.at(a)
		r.wanted = c.HasNew
		h.mark(r)
	}
	for a, c := range snap.Diff(h.want.Standings, want.Standings) {
		r := h.at(a)
		r.standing = c.New
		h.mark(r)
		h.closeOwned(a, c)
	}
	h.want = want
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
	late := false
	for _, c := range snap.Diff(h.applied, applied) {
		h.weigh(c, true)
		if r := h.count(c.New, 1); r != nil && r.lateFor(applied) {
			h.mark(r)
			late = true
		}
		h.count(c.Old, -1)
	}
	h.applied = applied
	all = append(all, h.removeUnneeded(ctx))
	if late {
		all = append(all, h.holdWanted(ctx), h.await())
	}
	all = append(all, h.guard.Finish(ctx))
	h.announceAll()
	all = append(all, h.clear(), h.ledger.save())
	h.publish()
	return errors.Join(all...)
}

// setSilent makes an address silent that is about to be added, or ends that.
func (h *Host) setSilent(r *address, silent bool) {
	if r.silent == silent {
		return
	}
	by := 1
	if r.silent = silent; !silent {
		by = -1
	}
	h.guard.Silence(r.addr, by)
}

// count keeps the number of applied frontends on a VIP. It returns the VIP's record.
func (h *Host) count(f *balancer.Frontend, by int) *address {
	if f == nil || f.NodePort {
		return nil
	}
	r := h.at(f.Addr)
	switch r.applied += by; {
	case r.applied > 0:
		h.setSilent(r, false)
	case !r.wanted:
		h.mark(r)
	}
	return r
}

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
	p := &public{addresses: h.shown, wanted: h.want.Frontends, other: slices.Concat(h.arp, h.unforwarded, h.untuned, h.unfinished(), h.guard.Problems())}
	h.public.Store(p)
}

// Problems says which VIPs are not local, and which parts of the guard and which sysctls are unavailable.
func (h *Host) Problems() []balancer.Problem {
	p := h.public.Load()
	out := p.other[:len(p.other):len(p.other)]
	for _, a := range p.addresses.All() {
		if a.held.Where == nowhere && a.held.Standing == "" && h.opts.Bind {
			out = append(out, notLocal(a.held, p.wanted))
		}
	}
	return out
}

// Addresses says of every VIP in use who holds it, in the order of addresses.
func (h *Host) Addresses() []Held {
	p := h.public.Load()
	out := make([]Held, 0, p.addresses.Len())
	for _, a := range p.addresses.All() {
		if a.held != (Held{}) {
			out = append(out, a.held)
		}
	}
	return out
}
