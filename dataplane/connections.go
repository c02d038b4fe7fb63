package dataplane

import (
	"context"
	"net/netip"
	"time"

	"vipd/balancer"
)

// Connection is a live connection or flow.
type Connection struct {
	Frontend balancer.Key   `json:"frontend"`
	Service  balancer.Name  `json:"service"`
	Client   netip.AddrPort `json:"client"`
	Backend  netip.AddrPort `json:"backend"`
	// State is one of States. It depends on the mode.
	State string `json:"state"`
	// Since is the time when the connection started. It is zero if the kernel does not record it.
	Since time.Time `json:"since,omitzero"`
	// In and Out are the numbers of bytes received from and sent to the client. They are 0 if the
	// kernel does not count bytes.
	In  uint64 `json:"bytes_in,omitzero"`
	Out uint64 `json:"bytes_out,omitzero"`
	// Retries is the number of endpoints that failed before this endpoint accepted the connection.
	// Only userspace mode counts them.
	Retries int `json:"retries,omitzero"`
	// End describes how the connection ended. It is "" if the connection is live or the mode can't
	// determine the reason.
	End string `json:"end,omitzero"`
}

// Closed reports whether both sides have closed the connection. The kernel keeps such a connection
// for up to two minutes.
func (c *Connection) Closed() bool {
	return c.State == "time-wait" || c.State == "close" || c.State == "closed"
}

// These are the values of Connection.End: closed by both sides, reset by one side, cut by vipd, or
// refused because no endpoint accepted it.
const (
	EndClosed  = "closed"
	EndReset   = "reset"
	EndCut     = "cut"
	EndRefused = "refused"
)

// A UDP flow has no end. After IdleAfter without a packet, the flow no longer counts as live and
// its state is Idle, but the kernel keeps it longer. IdleAfter exceeds 5 s, because DNS resolvers
// repeat an unanswered query after that time.
const (
	IdleAfter = 10 * time.Second
	Idle      = "idle"
)

// States returns the connection states of all modes.
func States() []string {
	return []string{
		"connecting", "established", "half-closed", "draining", "flow", Idle, // userspace mode
		"none", "syn-sent", "syn-recv", "fin-wait", "close-wait", "last-ack", "time-wait", "close", "syn-sent2", "listen", "synack", // TCP
		"unreplied", "replied", "assured", "udp", // UDP
		"closed", "cookie-wait", "cookie-echoed", "shutdown-sent", "shutdown-recd", "shutdown-ack-sent", "heartbeat-sent", "heartbeat-acked", // SCTP
		"init1", "init", "c-sent", "c-replied", "c-wait", "cookie", "c-echoed", "s-sent", "s-received", "s-ack-sent", "rejected", // SCTP of IPVS
	}
}

// ConnectionQuery selects connections. A zero field matches any value, and so does port 0 in an
// address. A port range matches each of its ports.
type ConnectionQuery struct {
	Service  balancer.Name
	Frontend balancer.Key
	Client   netip.AddrPort
	Backend  netip.AddrPort
	State    string
}

// Matches reports whether q selects c.
func (q *ConnectionQuery) Matches(c *Connection) bool {
	return (q.Service == "" || q.Service == c.Service) &&
		(q.Frontend == balancer.Key{} || q.Frontend.Covers(c.Frontend)) &&
		matches(c.Client, q.Client) && matches(c.Backend, q.Backend) &&
		(q.State == "" || q.State == c.State)
}

// matches reports whether a equals want. If want has no address, it matches everything. If its port
// is 0, it matches every port.
func matches(a, want netip.AddrPort) bool {
	return !want.Addr().IsValid() || want.Addr() == a.Addr() && (want.Port() == 0 || want.Port() == a.Port())
}

// ListsConnections is implemented by a dataplane, or a group of dataplanes, that can list its live
// connections.
type ListsConnections interface {
	// Connections calls visit for each live connection that q selects, as soon as it is found.
	// Connections are not collected first, so visit may be slow. If visit returns an error,
	// Connections stops and returns it. The connection is valid only until visit returns.
	Connections(ctx context.Context, q ConnectionQuery, visit func(*Connection) error) error
}

// EndsConnections is implemented by a dataplane that can end single connections.
type EndsConnections interface {
	// Kill ends the connections that q selects and returns their number. If it returns an error,
	// some of the connections may have ended.
	Kill(ctx context.Context, q ConnectionQuery) (int, error)
}

// FollowsConnections is implemented by a dataplane that reports connections when they start and
// end.
type FollowsConnections interface {
	// Follow calls report for each connection that starts or ends, until ctx is done, and then
	// returns nil. For a connection without a backend, it reports only the end. The connection is
	// valid only until report returns. If report is too slow, Follow misses events and calls lost
	// with the number of missed ends. If that number is unknown, it is 1. If only starts were
	// missed, it is 0.
	Follow(ctx context.Context, report func(started bool, c *Connection), lost func(ends uint64)) error
}

// Connections returns the connections of d that q selects.
func Connections(ctx context.Context, d ListsConnections, q ConnectionQuery) (all []Connection, err error) {
	err = d.Connections(ctx, q, func(c *Connection) error {
		all = append(all, *c)
		return nil
	})
	return all, err
}
