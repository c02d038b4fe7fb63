package host

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
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

// state is what all parts of a Host share.
type state struct {
	opts Options
	log  *slog.Logger
	kernel
	guard  *guard.Guard
	ledger *ledger
	known
	demand
	device holder
	addresses
	// mode is what SetMode said last.
	mode atomic.Pointer[dataplane.Needs]
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

// newState opens what is needed of the kernel, and reads the ledger.
func newState(o Options) (*state, error) {
	st := &state{
		opts: o, log: o.Log, guard: guard.New(o.Guard()), addresses: newAddresses(),
		known: known{full: true, view: view{addrs: map[netip.Addr][]local{}, devices: map[int]device{}}},
	}
	st.mode.Store(&o.Mode)
	var err error
	if st.ledger, err = readLedger(o.RunDir); err != nil {
		o.Log.Warn("not all of the ledger can be used: addresses on devices of others that it does not name count as the host's own", "err", err)
	}
	return st, st.openSockets()
}

func readLedger(dir string) (*ledger, error) {
	boot, namespace, untold := runfile.Stamp()
	l, err := loadLedger(dir, boot, namespace)
	return l, errors.Join(err, untold)
}

// openSockets opens the sockets.
func (k *kernel) openSockets() (err error) {
	k.sys, k.readView = procSysctls{}, readView
	k.newLink = func(name string) netlink.Link {
		return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, Alias: deviceAlias}}
	}
	if k.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("opening a route socket: %w", err)
	}
	if k.batches, err = rtnl.Open(); err != nil {
		k.nl.Close()
		return err
	}
	if k.events, err = openEvents(); err != nil {
		k.nl.Close()
		return errors.Join(err, k.batches.Close())
	}
	if k.alerts, err = openAlerts(); err != nil {
		k.nl.Close()
		return errors.Join(err, k.batches.Close(), k.events.Close())
	}
	return nil
}

func (k *kernel) closeSockets() error {
	k.nl.Close()
	return errors.Join(k.events.Close(), k.batches.Close(), k.alerts.close())
}

// familyOf returns 0 for IPv4 and 1 for IPv6.
func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// holds reports whether any address of the family is held.
func (st *state) holds(family int) bool { return st.guard.Holds(world()[family]) }

// wantsStrictARP reports whether VIPs are held on a device that leads nowhere, about which neighbours may ask.
func (st *state) wantsStrictARP() bool {
	d, err := st.holder()
	return st.opts.StrictARP && err == nil && d.kind != realDevice && st.holds(0)
}

// record notes that an address is ours.
func (st *state) record(a netip.Addr, device string) {
	if _, ok := st.ledger.Addresses[a]; !ok {
		st.guard.Hold(a, 1)
	}
	st.ledger.setAddress(a, device)
	st.showOurs(a, true)
}

// unrecord notes that an address is not ours any more.
func (st *state) unrecord(r *address) {
	if _, ok := st.ledger.Addresses[r.addr]; ok {
		st.guard.Hold(r.addr, -1)
	}
	st.ledger.dropAddress(r.addr)
	r.unrouted, r.unannounced = "", false
	st.setSilent(r, false)
	st.showOurs(r.addr, false)
}

// setSilent makes an address silent that is about to be added, or ends that.
func (st *state) setSilent(r *address, silent bool) {
	if r.silent == silent {
		return
	}
	by := 1
	if r.silent = silent; !silent {
		by = -1
	}
	st.guard.Silence(r.addr, by)
}
