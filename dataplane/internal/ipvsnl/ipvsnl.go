package ipvsnl

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"vipd/balancer"
)

// Conn is a connection to the kernel's IPVS (Client), or to a substitute (Fake). Its methods are
// safe for concurrent use. Errors name the object of the request. They can be compared with this
// package's errors and with kernel error numbers by errors.Is.
type Conn interface {
	// Do applies changes in order. It returns nil if all changes succeeded. Otherwise it returns an
	// error or nil for each change. It continues after a failure.
	Do(ctx context.Context, ops []Op) []error
	// Service reads a virtual server with a single message. It returns ErrNoService if the virtual
	// server does not exist.
	Service(ctx context.Context, key balancer.Key) (ServiceState, error)
	// Services reads all virtual servers in no particular order. It skips virtual servers without a
	// key, and ranges of ports that no earlier request has named. While virtual servers are deleted
	// in any network namespace, the kernel (6.1) may silently omit others. So a missing entry does
	// not prove that the virtual server is missing.
	Services(ctx context.Context) ([]ServiceState, error)
	// Destinations reads the destinations of a virtual server in no particular order. It returns
	// ErrNoService if the virtual server does not exist.
	Destinations(ctx context.Context, key balancer.Key) ([]DestinationState, error)
	// Table reads all virtual servers with their destinations. It is the fastest method, but
	// returns fewer details. It skips the same virtual servers as Services. Concurrent changes may
	// be missed or read partially. If other network namespaces have virtual servers, the kernel
	// (6.1) may omit entries at any time. It counts foreign entries when it saves its position in
	// the table, but not when it restores the position. So a missing entry does not prove that the
	// virtual server is missing.
	Table(ctx context.Context) (map[balancer.Key]TableService, error)
	// Services4 returns the number of virtual servers with an IPv4 address or an IPv4 firewall
	// mark. Its cost does not depend on their number. The kernel does not count other virtual
	// servers.
	Services4(ctx context.Context) (int, error)
	// Timeouts returns the times for which the kernel keeps connections without packets.
	Timeouts(ctx context.Context) (Timeouts, error)
	// SetTimeouts sets the timeouts that are not zero, and keeps the others.
	SetTimeouts(ctx context.Context, t Timeouts) error
	// Connections yields the entries of the table of connections. It ends after an error.
	Connections(ctx context.Context) iter.Seq2[Connection, error]
	// HasScheduler reports whether the kernel supports a scheduler. If necessary, it loads the
	// scheduler's module.
	HasScheduler(ctx context.Context, name string) (bool, error)
	// Close closes the connection. It does not change the kernel's state.
	Close() error
}

// Flags are the flags of a virtual server: IP_VS_SVC_F_... in include/uapi/linux/ip_vs.h. Bits
// without a name here are preserved.
type Flags uint32

// These are the flags.
const (
	// Persistent sends a client to the same destination for Service.Timeout.
	Persistent Flags = 1 << 0
	// Fallback makes sh and mh choose another destination if the selected destination has weight 0
	// or is overloaded.
	Fallback Flags = 1 << 3

	// hashed marks a virtual server in the kernel's table. The kernel sets it, so all virtual
	// servers that are read have it.
	hashed Flags = 1 << 1
)

// Service is a virtual server. A key with a range of ports stands for the firewall mark that [Mark]
// returns. Packets need this mark to reach the virtual server, and keep their port. Its
// destinations have the first port of the range.
type Service struct {
	Key balancer.Key
	// Scheduler is the kernel's name of the scheduler. For example, "wrr" is in the module
	// ip_vs_wrr.
	Scheduler string
	Flags     Flags
	// Timeout is the time for which a client is sent to the same destination after its last
	// connection, if Flags contains Persistent. It is in whole seconds, and at most MaxTimeout.
	Timeout time.Duration
	// Prefix is the prefix length by which clients are grouped. If 0, each address is a client.
	Prefix int
}

// MaxTimeout is the maximum Timeout of a Service. Longer timeouts overflow in kernels with 1,000
// ticks per second.
const MaxTimeout = (1<<32 - 1) / 1000 * time.Second

// These forwarding methods are only used by virtual servers of other programs.
const (
	// LocalForward delivers packets to the host itself.
	LocalForward balancer.Forward = "local"
	// BypassForward forwards packets to their original destination.
	BypassForward balancer.Forward = "bypass"
)

// Destination is a real server of a virtual server. Addr identifies it.
type Destination struct {
	Addr    netip.AddrPort
	Forward balancer.Forward
	// Weight is the share of new connections; 0 means no new connections. It is at most 1<<31 - 1,
	// but not all schedulers support such large weights.
	Weight int
	// Upper and Lower are thresholds of connections. Once the destination has Upper connections, it
	// gets no new connections until it has fewer than Lower. If Lower is 0, three quarters of Upper
	// are used instead. If Upper is 0, there is no threshold. Lower is at most Upper, and Upper at
	// most 1<<31 - 1.
	Upper, Lower uint32
}

// Stats holds the counters since the creation of a virtual server or destination. A destination
// that is added again while it has old connections keeps its counts.
type Stats struct {
	Connections uint64
	// In counts packets from clients, and Out packets to clients. With dr and tunnel, packets to
	// clients bypass this node. Bytes include IP headers.
	InPackets, OutPackets uint64
	InBytes, OutBytes     uint64
}

// ServiceState is the kernel's state of a virtual server.
type ServiceState struct {
	Service
	Stats
}

// DestinationState is the kernel's state of a destination.
type DestinationState struct {
	Destination
	// Active is the number of established TCP and SCTP connections according to the kernel. With dr
	// and tunnel, the kernel sees only one direction. Inactive is the number of all other
	// connections: UDP, and connections that are opening or closing.
	Active, Inactive uint32
	Stats
}

// TableService is a virtual server as shown in the table.
type TableService struct {
	Scheduler string
	// Destinations are in the kernel's order: the newest destination is first.
	Destinations []TableDestination
}

// TableDestination is a destination as shown in the table.
type TableDestination struct {
	Addr netip.AddrPort
	// Forward is also NATForward for BypassForward, because the table does not distinguish them.
	Forward          balancer.Forward
	Weight           int
	Active, Inactive uint32
}

// Timeouts holds the times for which the kernel keeps connections without packets, in whole
// seconds.
type Timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

func (t Timeouts) Invalid() error {
	for _, d := range []time.Duration{t.TCP, t.TCPFin, t.UDP} {
		if d < 0 || d > MaxIdle || d%time.Second != 0 {
			return fmt.Errorf("setting IPVS timeouts: %s must be a whole number of seconds from 0 to %s", d, MaxIdle)
		}
	}
	return nil
}

// MaxIdle is the maximum of a timeout. A timeout must fit in the kernel's signed number of ticks,
// with up to 1,000 ticks per second.
const MaxIdle = (1<<31 - 1) / 1000 * time.Second

// Connection is an entry of the table of connections.
type Connection struct {
	Proto balancer.Protocol
	// Client is the source of the connection, Frontend is its destination, and Backend is the
	// endpoint.
	Client, Frontend, Backend netip.AddrPort
	// State is the kernel's name of the state in lower case, such as "established", "fin_wait" or
	// "udp".
	State string
	// Expires is the time until the entry is removed if no packet arrives.
	Expires time.Duration
	// Template reports whether the entry is a persistence template instead of a connection. The
	// client of a template has port 0.
	Template bool
}
