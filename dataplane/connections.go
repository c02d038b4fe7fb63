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
	// State is the mode's own word: connecting, established, half-closed, flow, ...; Idle where that applies.
	State string `json:"state"`
	// Since is when it began; zero where the kernel does not record it.
	Since time.Time `json:"since,omitzero"`
	// In and Out are bytes from and to the client; 0, and left out, also where the kernel does not count them.
	In  uint64 `json:"bytes_in,omitzero"`
	Out uint64 `json:"bytes_out,omitzero"`
	// Retries counts the endpoints that did not take it before this one did; userspace mode alone knows.
	Retries int `json:"retries,omitzero"`
	// End says how it ended, where it has: closed by both sides, reset by one, cut by vipd, or refused, as no endpoint took it. "" where
	// the mode does not know.
	End string `json:"end,omitzero"`
}

// Closed reports whether both sides have closed the connection. The kernel remembers it for up to two minutes longer.
func (c *Connection) Closed() bool {
	return c.State == "time-wait" || c.State == "close" || c.State == "closed"
}

// The ways in which a connection ends.
const (
	EndClosed  = "closed"
	EndReset   = "reset"
	EndCut     = "cut"
	EndRefused = "refused"
)

// UDP flows have no end: one that has had no packet for IdleAfter counts as live no more, though it is remembered for longer, and
// its state is Idle. Resolvers ask again after 5 s.
const (
	IdleAfter = 10 * time.Second
	Idle      = "idle"
)

// States are the words of all modes for where a connection stands.
func States() []string {
	return []string{
		"connecting", "established", "half-closed", "draining", "flow", Idle, // userspace mode
		"none", "syn-sent", "syn-recv", "fin-wait", "close-wait", "last-ack", "time-wait", "close", "syn-sent2", "listen", "synack", // TCP
		"unreplied", "replied", "assured", "udp", // UDP
		"closed", "cookie-wait", "cookie-echoed", "shutdown-sent", "shutdown-recd", "shutdown-ack-sent", "heartbeat-sent", "heartbeat-acked", // SCTP
		"init1", "init", "c-sent", "c-replied", "c-wait", "cookie", "c-echoed", "s-sent", "s-received", "s-ack-sent", "rejected", // SCTP of IPVS
	}
}

// ConnectionQuery names connections. A zero field leaves the choice open, and so does port 0 of an address.
type ConnectionQuery struct {
	Service  balancer.Name
	Frontend balancer.Key
	Client   netip.AddrPort
	Backend  netip.AddrPort
	State    string
}

// Names reports whether q names c.
func (q *ConnectionQuery) Names(c *Connection) bool {
	return (q.Service == "" || q.Service == c.Service) &&
		(q.Frontend == balancer.Key{} || q.Frontend == c.Frontend) &&
		isAt(c.Client, q.Client) && isAt(c.Backend, q.Backend) &&
		(q.State == "" || q.State == c.State)
}

// isAt reports whether a is at the place that was asked for.
func isAt(a, asked netip.AddrPort) bool {
	return !asked.Addr().IsValid() || asked.Addr() == a.Addr() && (asked.Port() == 0 || asked.Port() == a.Port())
}

// Connector has connections, as a Dataplane does.
type Connector interface {
	Connections(ctx context.Context, q ConnectionQuery, visit func(*Connection) error) error
}

// Connections collects the connections of d that q names.
func Connections(ctx context.Context, d Connector, q ConnectionQuery) (all []Connection, err error) {
	err = d.Connections(ctx, q, func(c *Connection) error {
		all = append(all, *c)
		return nil
	})
	return all, err
}
