package ipvsnl

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"time"

	"vipd/balancer"
)

// Conn is the kernel's IPVS, or what stands for it: Kernel and Fake. Its methods may be called from several goroutines.
// Errors name what was asked for; errors.Is tells those of this package, and the kernel's numbers.
type Conn interface {
	// Do applies changes in their order. It returns nil when all were done, otherwise an error, or nil, for each.
	// One that fails does not keep the others from being done.
	Do(ctx context.Context, ops []Op) []error
	// Service reads one virtual server: one message, whatever else there is. ErrNoService where there is none.
	Service(ctx context.Context, key balancer.Key) (ServiceState, error)
	// Services reads all virtual servers, in no order. Those that go by a firewall mark have no key and are left out. While virtual
	// servers are deleted, in any network namespace, the kernel (6.1) leaves out others and does not say so: that one is not in
	// the list says nothing.
	Services(ctx context.Context) ([]ServiceState, error)
	// Destinations reads those of one virtual server, in no order. ErrNoService where there is none.
	Destinations(ctx context.Context, key balancer.Key) ([]DestinationState, error)
	// Table reads all virtual servers with their destinations, in the fastest way, which shows less than the others.
	// What changes meanwhile may be missed, or be read in halves, and where other network namespaces have virtual servers
	// as well, the kernel (6.1) leaves some out at any time: it counts those for its place in the table whenever it goes
	// on, and not when it finds that place again for the next part. That one is not in the table says nothing.
	Table(ctx context.Context) (map[balancer.Key]TableService, error)
	// Services4 counts the virtual servers with an IPv4 address or a firewall mark of IPv4, at a cost that does not depend on
	// how many there are. The kernel does not count the others.
	Services4(ctx context.Context) (int, error)
	// Timeouts reads how long connections without packets are remembered.
	Timeouts(ctx context.Context) (Timeouts, error)
	// SetTimeouts sets those that are not zero.
	SetTimeouts(ctx context.Context, t Timeouts) error
	// Connections reads the table of connections, one by one as the kernel gives them. An error ends it.
	Connections(ctx context.Context) iter.Seq2[Connection, error]
	// HasScheduler reports whether the kernel has a scheduler, or a module of that name that it can load, which it then
	// does.
	HasScheduler(ctx context.Context, name string) (bool, error)
	// Close ends the connection with the kernel. What is there stays.
	Close() error
}

// Flags says how a virtual server schedules: IP_VS_SVC_F_... in include/uapi/linux/ip_vs.h. Bits that have no name here
// are kept as they are.
type Flags uint32

// The flags.
const (
	// Persistent: clients stay with their destination for Service.Timeout.
	Persistent Flags = 1 << 0
	// Fallback: sh and mh look for another destination where the one that they find has weight 0 or is overloaded.
	Fallback Flags = 1 << 3

	// hashed is the kernel's own mark that a virtual server is in its table; it is in all that one reads.
	hashed Flags = 1 << 1
)

// Service is a virtual server.
type Service struct {
	Key balancer.Key
	// Scheduler is the kernel's name for it: "wrr" is module ip_vs_wrr.
	Scheduler string
	Flags     Flags
	// Timeout is how long a client stays with its destination after its last connection, if Flags has Persistent: whole
	// seconds, at most MaxTimeout. A client is one address.
	Timeout time.Duration
}

// MaxTimeout is the longest that a Service's Timeout may be: more overflows in a kernel that counts 1,000 ticks a
// second.
const MaxTimeout = (1<<32 - 1) / 1000 * time.Second

// What the kernel can do with packets besides what services ask for. Only virtual servers that others made show these.
const (
	// LocalForward delivers packets to the host itself.
	LocalForward balancer.Forward = "local"
	// BypassForward sends packets on to where they were going.
	BypassForward balancer.Forward = "bypass"
)

// Destination is a real server of a virtual server. Addr identifies it.
type Destination struct {
	Addr    netip.AddrPort
	Forward balancer.Forward
	// Weight is the share of new connections; 0 means none. It is at most 1<<31 - 1, of which not all schedulers make sense.
	Weight int
	// At Upper connections the destination gets no new ones until there are less than Lower, or, if that is 0, less than
	// three quarters of Upper. 0 means no threshold. Lower is at most Upper, and Upper at most 1<<31 - 1.
	Upper, Lower uint32
}

// Stats counts since a virtual server or destination was made. A destination that is added again while its old
// connections last keeps its counts.
type Stats struct {
	Connections uint64
	// In is from clients, Out to them; with dr and tunnel, the latter do not come by. Bytes are those of IP packets.
	InPackets, OutPackets uint64
	InBytes, OutBytes     uint64
}

// ServiceState is a virtual server as it is in the kernel.
type ServiceState struct {
	Service
	Stats
}

// DestinationState is a destination as it is in the kernel.
type DestinationState struct {
	Destination
	// Active connections are those of TCP and SCTP that are established, as far as the kernel sees: of dr and tunnel it
	// sees one direction only. Inactive are all others: those that begin or end, and all of UDP.
	Active, Inactive uint32
	Stats
}

// TableService is what the table shows of a virtual server.
type TableService struct {
	Scheduler string
	// Destinations are in the kernel's order, the latest first.
	Destinations []TableDestination
}

// TableDestination is what the table shows of a destination.
type TableDestination struct {
	Addr netip.AddrPort
	// Forward is NATForward for BypassForward, too: the table has no word for that.
	Forward          balancer.Forward
	Weight           int
	Active, Inactive uint32
}

// Timeouts is how long a connection without packets is remembered: whole seconds.
type Timeouts struct {
	TCP, TCPFin, UDP time.Duration
}

func (t Timeouts) Invalid() error {
	for _, d := range []time.Duration{t.TCP, t.TCPFin, t.UDP} {
		if d < 0 || d > maxIdle || d%time.Second != 0 {
			return fmt.Errorf("setting IPVS timeouts: %s is not 0 to %s in whole seconds", d, maxIdle)
		}
	}
	return nil
}

// maxIdle is what fits into a kernel's signed count of ticks, of which there are 1,000 a second at most.
const maxIdle = (1<<31 - 1) / 1000 * time.Second

// Connection is an entry of the table of connections.
type Connection struct {
	Proto balancer.Protocol
	// Client is who connects, Frontend what to, Backend the destination.
	Client, Frontend, Backend netip.AddrPort
	// State is the kernel's word in lower case, such as "established", "fin_wait" or "udp".
	State string
	// Expires is when the entry will be forgotten, if no packet comes.
	Expires time.Duration
	// Template: this is no connection but the memory that a persistent client, whose port is 0, belongs to a backend.
	Template bool
}
