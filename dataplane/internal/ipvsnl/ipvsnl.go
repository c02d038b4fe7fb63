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
// safe for concurrent use. Errors name the requested object. errors.Is can compare them with this
// package's errors and with kernel error numbers.
type Conn interface {
	// Do applies changes in order. It returns nil if all changes succeeded. Otherwise it returns an
	// error or nil for each change. It continues after a failure.
	Do(ctx context.Context, ops []Op) []error
	// Service reads a virtual server with a single message. It returns ErrNoService if the virtual
	// server does not exist.
	Service(ctx context.Context, key balancer.Key) (ServiceState, error)
	// Services reads all virtual servers in no particular order. It skips virtual servers without a
	// key, and port ranges that no earlier request has named. While virtual servers are deleted in
	// any network namespace, the kernel (6.1) may silently omit other virtual servers. So a missing
	// entry does not prove that the virtual server is missing.
	Services(ctx context.Context) ([]ServiceState, error)
	// Destinations reads the destinations of a virtual server in no particular order. It returns
	// ErrNoService if the virtual server does not exist.
	Destinations(ctx context.Context, key balancer.Key) ([]DestinationState, error)
	// Table reads all virtual servers with their destinations. It is the fastest way to read them,
	// but returns fewer details. It skips the same virtual servers as Services. Concurrent changes
	// may be missed or read partially. If other network namespaces have virtual servers, the kernel
	// (6.1) may omit entries at any time. It counts foreign entries when it saves its position in
	// the table, but not when it restores the position. So a missing entry does not prove that the
	// virtual server is missing.
	Table(ctx context.Context) (map[balancer.Key]TableService, error)
	// Services4 returns the number of virtual servers with an IPv4 address or an IPv4 firewall
	// mark. Its cost does not depend on their number. The kernel does not count other virtual
	// servers.
	Services4(ctx context.Context) (int, error)
	// Timeouts returns how long the kernel keeps connections without packets.
	Timeouts(ctx context.Context) (Timeouts, error)
	// SetTimeouts sets the timeouts that are not zero in t. Other timeouts do not change.
	SetTimeouts(ctx context.Context, t Timeouts) error
	// Connections yields the entries of the connection table. It stops after an error.
	Connections(ctx context.Context) iter.Seq2[Connection, error]
	// HasScheduler reports whether the kernel supports a scheduler. If necessary, it loads the
	// scheduler's module.
	HasScheduler(ctx context.Context, name string) (bool, error)
	// Close closes the connection. It does not change the kernel's state.
	Close() error
}

// Flags are a virtual server's flags: IP_VS_SVC_F_... in include/uapi/linux/ip_vs.h. Bits that have
// no name here are preserved.
type Flags uint32

// These are the flags.
const (
	// Persistent sends a client to the same destination for Service.Timeout.
	Persistent Flags = 1 << 0
	// Fallback makes sh and mh choose another destination if the selected destination has weight 0
	// or is overloaded.
	Fallback Flags = 1 << 3

	// hashed marks a virtual server in the kernel's table. The kernel sets this flag itself, so
	// every virtual server read from the kernel has it.
	hashed Flags = 1 << 1
)

// Service is a virtual server. A key with a port range represents the firewall mark that [Mark]
// returns. Packets need this mark to reach the virtual server, and keep their port. The
// destinations of such a virtual server have the range's first port.
type Service struct {
	Key balancer.Key
	// Scheduler is the kernel's name for the scheduler. For example, the module ip_vs_wrr contains
	// "wrr".
	Scheduler string
	Flags     Flags
	// Timeout is how long a client is sent to the same destination after its last connection, if
	// Flags contains Persistent. It is in whole seconds, and at most MaxTimeout.
	Timeout time.Duration
	// Prefix is the prefix length by which clients are grouped. If 0, each address is a client.
	Prefix int
}

// MaxTimeout is the maximum Timeout of a Service. Longer timeouts overflow in kernels with 1,000
// ticks per second.
const MaxTimeout = (1<<32 - 1) / 1000 * time.Second

// Only other programs' virtual servers use these forwarding methods.
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
	// Upper and Lower are connection thresholds. Once the destination has Upper connections, it
	// gets no new connections until it has fewer than Lower. If Lower is 0, the kernel uses three
	// quarters of Upper. If Upper is 0, there is no threshold. Lower is at most Upper, and Upper at
	// most 1<<31 - 1.
	Upper, Lower uint32
}

// Stats holds the counters of a virtual server or destination since its creation. A destination
// that is added again while it still has connections keeps its counts.
type Stats struct {
	Connections uint64
	// In counts packets from clients, and Out packets to clients. With dr and tunnel, packets to
	// clients bypass this node. Bytes include IP headers.
	InPackets, OutPackets uint64
	InBytes, OutBytes     uint64
}

// ServiceState is a virtual server in the kernel.
type ServiceState struct {
	Service
	Stats
}

// DestinationState is a destination in the kernel.
type DestinationState struct {
	Destination
	// Active is the number of established TCP and SCTP connections according to the kernel. With dr
	// and tunnel, the kernel sees only one direction. Inactive is the number of all other
	// connections: UDP, and connections that are opening or closing.
	Active, Inactive uint32
	Stats
}

// TableService is a virtual server as /proc/net/ip_vs shows it.
type TableService struct {
	Scheduler string
	// Destinations are in the kernel's order: the newest destination is first.
	Destinations []TableDestination
}

// TableDestination is a destination as /proc/net/ip_vs shows it.
type TableDestination struct {
	Addr netip.AddrPort
	// Forward is NATForward even if the kernel has BypassForward, because the table does not
	// distinguish them.
	Forward          balancer.Forward
	Weight           int
	Active, Inactive uint32
}

// Timeouts holds how long the kernel keeps connections without packets, in whole seconds.
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

// MaxIdle is the maximum of each timeout, which must fit in the kernel's signed number of ticks,
// with up to 1,000 ticks per second.
const MaxIdle = (1<<31 - 1) / 1000 * time.Second

// Connection is an entry in the connection table.
type Connection struct {
	Proto balancer.Protocol
	// Client is the connection's source, Frontend is its destination, and Backend is the endpoint.
	Client, Frontend, Backend netip.AddrPort
	// State is the kernel's name for the state in lower case, such as "established", "fin_wait" or
	// "udp".
	State string
	// Expires is the time until the entry is removed if no packet arrives.
	Expires time.Duration
	// Template reports whether the entry is a persistence template instead of a connection. A
	// template's client has port 0.
	Template bool
}
