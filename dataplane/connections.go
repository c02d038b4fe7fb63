package dataplane

import (
	"context"
	"net/netip"
	"time"

	"vipd/balancer"
)

// Connection is one live connection or flow.
type Connection struct {
	Frontend balancer.Key   `json:"frontend"`
	Service  balancer.Name  `json:"service"`
	Client   netip.AddrPort `json:"client"`
	Backend  netip.AddrPort `json:"backend"`
	// State is a word of the mode (States).
	State string `json:"state"`
	// Since is the start of the connection; zero if the kernel does not record it.
	Since time.Time `json:"since,omitzero"`
	// In and Out are bytes from and to the client; 0 if the kernel does not count them.
	In  uint64 `json:"bytes_in,omitzero"`
	Out uint64 `json:"bytes_out,omitzero"`
	// Retries counts the endpoints that failed before this endpoint accepted the connection. Only
	// userspace mode knows.
	Retries int `json:"retries,omitzero"`
	// End describes how it ended; "" if it is live or the mode does not know.
	End string `json:"end,omitzero"`
}

// Closed reports whether both sides have closed the connection. The kernel remembers it for up to
// two minutes longer.
func (c *Connection) Closed() bool {
	return c.State == "time-wait" || c.State == "close" || c.State == "closed"
}

// These are the ways in which a connection ends: closed by both sides, reset by one side, cut by
// vipd, or refused because no endpoint accepted it.
const (
	EndClosed  = "closed"
	EndReset   = "reset"
	EndCut     = "cut"
	EndRefused = "refused"
)

// A UDP flow has no end. After IdleAfter without a packet it no longer counts as live, and its
// state is Idle, though it is remembered for longer. Resolvers ask again after 5 s.
const (
	IdleAfter = 10 * time.Second
	Idle      = "idle"
)

// States returns the words of all modes for the state of a connection.
func States() []string {
	return []string{
		"connecting", "established", "half-closed", "draining", "flow", Idle, // userspace mode
		"none", "syn-sent", "syn-recv", "fin-wait", "close-wait", "last-ack", "time-wait", "close", "syn-sent2", "listen", "synack", // TCP
		"unreplied", "replied", "assured", "udp", // UDP
		"closed", "cookie-wait", "cookie-echoed", "shutdown-sent", "shutdown-recd", "shutdown-ack-sent", "heartbeat-sent", "heartbeat-acked", // SCTP
		"init1", "init", "c-sent", "c-replied", "c-wait", "cookie", "c-echoed", "s-sent", "s-received", "s-ack-sent", "rejected", // SCTP of IPVS
	}
}

// ConnectionQuery selects connections. A zero field, or port 0 of an address, matches any.
type ConnectionQuery struct {
	Service  balancer.Name
	Frontend balancer.Key
	Client   netip.AddrPort
	Backend  netip.AddrPort
	State    string
}

// Names reports whether q selects c.
func (q *ConnectionQuery) Names(c *Connection) bool {
	return (q.Service == "" || q.Service == c.Service) &&
		(q.Frontend == balancer.Key{} || q.Frontend == c.Frontend) &&
		matches(c.Client, q.Client) && matches(c.Backend, q.Backend) &&
		(q.State == "" || q.State == c.State)
}

// matches reports whether want selects a.
func matches(a, want netip.AddrPort) bool {
	return !want.Addr().IsValid() || want.Addr() == a.Addr() && (want.Port() == 0 || want.Port() == a.Port())
}

// ListsConnections is a dataplane, or several, that knows its live connections.
type ListsConnections interface {
	// Connections calls visit for each live connection that q selects, as it is found. Nothing is
	// collected, so visit may be slow. An error of visit ends the list and is returned. The
	// connection is valid until visit returns.
	Connections(ctx context.Context, q ConnectionQuery, visit func(*Connection) error) error
}

// EndsConnections is a dataplane that can end single connections.
type EndsConnections interface {
	// Kill ends the connections that q selects, and returns their number. After an error, some may
	// have ended.
	Kill(ctx context.Context, q ConnectionQuery) (int, error)
}

// FollowsConnections is a dataplane that reports connections as they start and end.
type FollowsConnections interface {
	// Follow calls report for each connection that starts or ends, and returns nil when ctx ends. A
	// connection without a backend only ends. It is valid until report returns. If report is too
	// slow, some are missed, and lost is called with the number of missed ends: 1 if it is unknown,
	// 0 if only starts were missed.
	Follow(ctx context.Context, report func(started bool, c *Connection), lost func(ends uint64)) error
}

// Connections collects the connections of d that q selects.
func Connections(ctx context.Context, d ListsConnections, q ConnectionQuery) (all []Connection, err error) {
	err = d.Connections(ctx, q, func(c *Connection) error {
		all = append(all, *c)
		return nil
	})
	return all, err
}
