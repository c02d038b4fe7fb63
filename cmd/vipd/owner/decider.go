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
// returned actions.
type decider interface {
	gateUser
	// Tick is called at each tick.
	Tick(now local.Time) []local.Action
	// Next returns the latest time at which Tick must be called, or 0 if any tick is early enough.
	Next() local.Time
	// Deadline returns the time until which VIPs may be served, or 0 if they must not be served.
	// The gate is refreshed while local.Passes permits this.
	Deadline() local.Time
	// Probed handles the answers to a local.Probe. found maps addresses to the MACs of other hosts
	// that have them.
	Probed(now local.Time, addrs []netip.Addr, found map[netip.Addr]string) []local.Action
	// Reached handles an answer from one of the hosts that must be within reach on an interface.
	// Reaching handles a change to the list of these hosts. on is an index of Layout.On.
	Reached(now local.Time, on int) []local.Action
	Reaching(now local.Time, on int) []local.Action
	// SetReport handles a report of vipd on a host with this layout.
	SetReport(now local.Time, report *api.OwnerReport, l onhost.Layout) []local.Action
	// Stop starts to release all VIPs. Left reports whether all are released.
	Stop(now local.Time) []local.Action
	Left() bool
	// Whose returns the name of the known host with a MAC, or "".
	Whose(mac string) string
	// Do performs one of the decider's own actions, in the loop. It must not block. Goroutines that
	// it starts must end when ctx ends. If it returns an input, the loop handles that input next.
	Do(ctx context.Context, a local.Action) input

	// run receives the decider's inputs. It returns when ctx has ended and all goroutines of Do
	// have ended.
	run(ctx context.Context)
	// listen starts to receive at the addresses of another layout.
	listen(before, after onhost.Layout) error
	// can sets the VIPs that this host can't serve, with the reasons. absent lists those of them
	// that it can't add to an interface.
	can(cannot map[netip.Addr]string, absent []netip.Addr)
	// describe adds the decider's state to a status.
	describe(s *api.OwnerStatus)
}

// input is an event for a decider. It returns the actions to perform.
type input = func(local.Time) []local.Action

// gateUser handles the results of actions in the kernel.
type gateUser interface {
	// Opened handles the result of opening the gate. Closed handles the completion of a
	// local.CloseGate.
	Opened(now local.Time, err error) []local.Action
	Closed(now local.Time) []local.Action
	// Lapsed handles a lapse of the gate. lasts is its duration so far, or 0 if that is unknown.
	Lapsed(now local.Time, why local.Lapse, lasts time.Duration) []local.Action
	// Unbound handles the completion of the local.Unbind with this ID.
	Unbound(now local.Time, id int) []local.Action
}
