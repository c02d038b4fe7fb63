package failover

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ID names one run of a process (its boot) or one session. 0 is none.
type ID uint64

// String returns the ID as it is in etcd.
func (i ID) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// MarshalText writes String.
func (i ID) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads what MarshalText has written.
func (i *ID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	*i = ID(n)
	return err
}

// Kind is a folder of keys.
type Kind string

// The kinds of keys, below PREFIX/ownership/.
const (
	Nodes    Kind = "nodes"
	Sessions Kind = "sessions"
	VIPs     Kind = "vips"
	Moves    Kind = "moves"
	Fences   Kind = "fenced"
)

// Key names a record in etcd.
type Key struct {
	Kind Kind
	Name string
}

// Member is what nodes/NODE says of a node, under its lease.
type Member struct {
	Boot    ID        `json:"boot"`
	Machine string    `json:"machine"`
	At      []Address `json:"addresses"`
	Weight  int       `json:"weight"`
	Zone    string    `json:"zone,omitempty"`
	Version string    `json:"version,omitempty"`
	// Standby: it gives its VIPs away and takes none.
	Standby bool `json:"standby,omitempty"`
	// StandbyBy is who said so and why, for this node's own events.
	StandbyBy Request `json:"-"`
	// Cannot has the addresses that this node can't take, with the reason of each. Absent are those of them that it can't add to a device;
	// the others it can't serve.
	Cannot map[netip.Addr]string `json:"cannot,omitempty"`
	Absent []netip.Addr          `json:"absent,omitempty"`
}

// Address is where a node hears heartbeats.
type Address struct {
	Addr netip.Addr `json:"address"`
	// Networks are those of a device that may hold VIPs; none: the way to etcd only.
	Networks []netip.Prefix `json:"networks,omitempty"`
	// MAC is that of the device, as text.
	MAC string `json:"mac,omitempty"`
}

// holds says whether a VIP belongs on the device of the address.
func (a Address) holds(vip netip.Addr) bool {
	return slices.ContainsFunc(a.Networks, func(p netip.Prefix) bool { return p.Contains(vip) })
}

// Reaches says whether one of the node's devices has a network with a VIP.
func (m *Member) Reaches(vip netip.Addr) bool { return m.place(vip) >= 0 }

// Lacks says why the node can't take a VIP; "" means it can. By force it takes what it can't serve, too.
func (m *Member) Lacks(vip netip.Addr, force bool) string {
	if force && !slices.Contains(m.Absent, vip) {
		return ""
	}
	return m.Cannot[vip]
}

// place returns which of the node's addresses a VIP belongs to; -1 means none.
func (m *Member) place(vip netip.Addr) int {
	return slices.IndexFunc(m.At, func(a Address) bool { return a.holds(vip) })
}

// Session is what sessions/NODE says: who may confirm and bury the session of a node, and its times.
type Session struct {
	ID      ID       `json:"id"`
	Machine string   `json:"machine"`
	Jury    []string `json:"jury"`
	Timing
}

// rebooted reports whether of two machines (MACHINE-ID/BOOT/NAMESPACE) one is a later boot of the other: then nothing is left of the earlier
// one's kernel. Machines without an ID can't be compared.
func rebooted(a, b string) bool {
	idA, bootA, _ := strings.Cut(a, "/")
	idB, bootB, _ := strings.Cut(b, "/")
	bootA, _, _ = strings.Cut(bootA, "/")
	bootB, _, _ = strings.Cut(bootB, "/")
	return idA != "" && idA == idB && bootA != bootB
}

// Owner is what vips/ADDRESS says.
type Owner struct {
	Node       string    `json:"node"`
	Session    ID        `json:"session"`
	Generation int       `json:"gen"`
	Since      time.Time `json:"since"`
	Why        string    `json:"why"`
}

// Request says who asked for something, and why.
type Request struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// String writes the request behind what was asked for: by ann: "kernel".
func (r Request) String() (text string) {
	if r.By != "" {
		text = " by " + r.By
	}
	if r.Reason != "" {
		text += fmt.Sprintf(": %q", r.Reason)
	}
	return text
}

// Move is what moves/ADDRESS asks for; the group of the address goes with it.
type Move struct {
	To string `json:"to,omitempty"` // "": the best node other than the present owner
	Request
	// Until is when the command that asked stops waiting: etcd removes the key then.
	Until time.Time `json:"until"`
	// Force: also to a node that can't serve it, where it then stays.
	Force bool `json:"force,omitempty"`
}

// Fence is what fenced/NODE says: a person states that the node is off.
type Fence struct{ Request }

// text writes a record.
func text(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // all records can be written
	}
	return b
}
