package owner

import (
	"context"
	"net/netip"
	"time"

	"vipd/balancer/failover/local"
	"vipd/cmd/internal/api"
	onhost "vipd/dataplane/failover"
)

// decider decides which VIPs this host has. The loop calls its exported methods and performs the
// returned actions.
type decider interface {
	gateUser
	// Tick is called each tick.
	Tick(now local.Time) []local.Action
	// Next returns when Tick has something to do at the latest; 0 means that is not known.
	Next() local.Time
	// Deadline returns until when VIPs may be served; 0 means not now. The gate is refreshed while
	// local.Passes allows it.
	Deadline() local.Time
	// Probed processes the answers to a local.Probe: the MACs of the hosts that have addresses.
	Probed(now local.Time, addrs []netip.Addr, found map[netip.Addr]string) []local.Action
	// Reached processes an answer of a host that must be within reach on an interface (an index of
	// Layout.On), and Reaching a change of these hosts.
	Reached(now local.Time, on int) []local.Action
	Reaching(now local.Time, on int) []local.Action
	// SetReport processes a report of vipd, on a host with this layout.
	SetReport(now local.Time, report *api.OwnerReport, l onhost.Layout) []local.Action
	// Stop releases all VIPs, and Left reports its completion.
	Stop(now local.Time) []local.Action
	Left() bool
	// Whose returns the known host that has a MAC, or "".
	Whose(mac string) string
	// Do performs an action of the decider's own, in the loop: it must not block. Goroutines that
	// it starts end with ctx. If the returned input is not nil, the loop processes it next.
	Do(ctx context.Context, a local.Action) input

	// run receives the decider's inputs, until ctx ends and all goroutines of Do have ended.
	run(ctx context.Context)
	// listen receives at the addresses of another layout.
	listen(before, after onhost.Layout) error
	// can changes the VIPs that this host can't serve, and the VIPs among them that it can't add to
	// an interface.
	can(cannot map[netip.Addr]string, absent []netip.Addr)
	// describe adds the decider's state to a status.
	describe(s *api.OwnerStatus)
}

// input is an event for a decider, which returns the actions to carry out.
type input = func(local.Time) []local.Action

// gateUser receives the results of actions in the kernel.
type gateUser interface {
	// Opened processes that the gate was opened, or could not be, and Closed that a local.CloseGate
	// was performed.
	Opened(now local.Time, err error) []local.Action
	Closed(now local.Time) []local.Action
	// Lapsed processes a lapse and its duration so far; 0 means unknown.
	Lapsed(now local.Time, why local.Lapse, lasts time.Duration) []local.Action
	// Unbound processes that a local.Unbind with an ID is carried out.
	Unbound(now local.Time, id int) []local.Action
}
