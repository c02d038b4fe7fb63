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

// state is shared by all parts of a Host.
type state struct {
	opts Options
	log  *slog.Logger
	handles
	guard  *guard.Guard
	ledger *ledger
	observed
	demand
	device holder
	addresses
	// mode is the argument of the last SetMode.
	mode atomic.Pointer[dataplane.Needs]
}

// handles holds the sockets and functions with which a Host reads and changes the kernel.
type handles struct {
	nl     *netlink.Handle
	sys    sysctls
	events *events
	alerts alerts
	// batches sends requests for many addresses or routes in batches.
	batches *rtnl.Batches
	newLink func(name string) netlink.Link
	// readView reads the complete view.
	readView func(*netlink.Handle) (view, error)
}

// observed holds the last observed state of the host's devices and addresses.
type observed struct {
	view view
	// full reports whether the state is unknown, so the next check must read everything.
	full bool
	// stale reports whether events were lost, so the view must be read again.
	stale bool
	// deviceWentDown reports whether the device that holds the VIPs has gone down since the last
	// check.
	deviceWentDown bool
	// linksChanged reports whether devices may have changed since the guard received them.
	linksChanged bool
	routeMTUs    routeMTUs
	// direct4 reports whether lo holds an IPv4 VIP of direct routing, or will hold it.
	direct4 bool
	// directChanged reports whether direct-routing VIPs may have changed since their last check.
	directChanged bool
	// gateways holds the host's next hops when addresses were last added. A gateway is never added
	// as a VIP.
	gateways []netip.Addr
	// broadcasts holds the broadcast addresses of the host's networks when addresses were last
	// added.
	broadcasts map[netip.Addr]netip.Prefix
}

// demand is the engine's request: want in the last Prepare, and applied in the last Finish.
type demand struct {
	want    balancer.Desired
	applied snap.Map[balancer.Key, *balancer.Frontend]
}

// newState opens the sockets and reads the ledger.
func newState(o Options) (*state, error) {
	st := &state{
		opts: o, log: o.Log, guard: guard.New(o.Guard()), addresses: newAddresses(),
		observed: observed{full: true, view: view{addrs: map[netip.Addr][]local{}, devices: map[int]device{}}},
	}
	st.mode.Store(&o.Mode)
	var err error
	if st.ledger, err = readLedger(o.RunDir); err != nil {
		o.Log.Warn("part of the ledger is unusable: vipd treats addresses on other programs' devices as the host's own unless the ledger lists them", "err", err)
	}
	return st, st.openSockets()
}

func readLedger(dir string) (*ledger, error) {
	boot, namespace, untold := runfile.Stamp()
	l, err := loadLedger(dir, boot, namespace)
	return l, errors.Join(err, untold)
}

func (k *handles) openSockets() (err error) {
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

func (k *handles) closeSockets() error {
	k.nl.Close()
	return errors.Join(k.events.Close(), k.batches.Close(), k.alerts.close())
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}

// holds reports whether any address of the family is held.
func (st *state) holds(family int) bool { return st.guard.Holds(probeDestinations()[family]) }

// wantsStrictARP reports whether the host must not answer ARP requests for its VIPs. They are on a
// device without neighbors, but hosts on other links might ask for them.
func (st *state) wantsStrictARP() bool {
	d, err := st.holder()
	return st.direct4 || st.opts.StrictARP && err == nil && d.kind != realDevice && st.holds(0)
}

// record records that vipd is adding or has added an address to a device. The guard then counts the
// address as held.
func (st *state) record(a netip.Addr, device string) {
	if _, ok := st.ledger.Addresses[a]; !ok {
		st.guard.Hold(a, 1)
	}
	st.ledger.setAddress(a, device)
	st.showOurs(a, true)
}

// unrecord records that an address no longer belongs to vipd.
func (st *state) unrecord(r *address) {
	if _, ok := st.ledger.Addresses[r.addr]; ok {
		st.guard.Hold(r.addr, -1)
	}
	st.ledger.dropAddress(r.addr)
	r.unrouted, r.unannounced = "", false
	st.setSilent(r, false)
	st.showOurs(r.addr, false)
}

// setSilent makes the guard drop an address's packets silently, or accept them again.
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
