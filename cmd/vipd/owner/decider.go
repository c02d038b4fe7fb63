package owner

import (
	"context"
	"net/netip"
	"time"

	"vipd/balancer/failover/local"
	"vipd/cmd/internal/api"
	onhost "vipd/dataplane/failover"
)

// decider decides which VIPs this host owns. The loop calls its exported methods and performs the
// actions that they return.
type decider interface {
	gateUser
	// Tick is called at each tick.
	Tick(now local.Time) []local.Action
	// Next returns the latest time at which Tick must be called, or 0 if any tick is early enough.
	Next() local.Time
	// Deadline returns the time until which VIPs may be served, or 0 if they must not be served.
	// The gate is refreshed while local.Passes permits it.
	Deadline() local.Time
	// Probed handles the answers to a local.Probe. found maps addresses to the MAC addresses of
	// other hosts that have them.
	Probed(now local.Time, addrs []netip.Addr, found map[netip.Addr]string) []local.Action
	// Reached handles an answer from one of the hosts that must be within reach on an interface.
	// Reaching handles a change to the list of these hosts. on is an index into Layout.On.
	Reached(now local.Time, on int) []local.Action
	Reaching(now local.Time, on int) []local.Action
	// SetReport handles vipd's report on a host with the layout l.
	SetReport(now local.Time, report *api.OwnerReport, l onhost.Layout) []local.Action
	// Stop starts to release all VIPs. Left reports whether all are released.
	Stop(now local.Time) []local.Action
	Left() bool
	// Whose returns the name of the known host that has the MAC address mac, or "".
	Whose(mac string) string
	// Do performs one of the decider's own actions, in the loop. It must not block. Goroutines that
	// it starts must return when ctx is done. If it returns an input, the loop handles that input
	// next.
	Do(ctx context.Context, a local.Action) input

	// run receives the decider's inputs. It returns when ctx is done and all goroutines that Do
	// started have returned.
	run(ctx context.Context)
	// listen starts to receive at the addresses of the layout after instead of before.
	listen(before, after onhost.Layout) error
	// can sets the VIPs that this host can't serve, with the reasons. absent lists the VIPs among
	// them that it can't add to an interface.
	can(cannot map[netip.Addr]string, absent []netip.Addr)
	// describe adds the decider's state to a status.
	describe(s *api.OwnerStatus)
}

// input is an event for a decider. It returns the actions to perform.
type input = func(local.Time) []local.Action

// gateUser handles the results of actions in the kernel.
type gateUser interface {
	// Opened handles the result of opening the gate. Closed is called when a local.CloseGate has
	// completed.
	Opened(now local.Time, err error) []local.Action
	Closed(now local.Time) []local.Action
	// Lapsed handles a lapse of the gate. lasts is how long the gate has been closed, or 0 if that
	// is unknown.
	Lapsed(now local.Time, why local.Lapse, lasts time.Duration) []local.Action
	// Bound is called when VIPs have been added to their devices and are announced.
	Bound(now local.Time, vips []netip.Addr) []local.Action
	// Unbound is called when the local.Unbind with this ID has completed.
	Unbound(now local.Time, id int) []local.Action
}
