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

// ID identifies a run of a process (its boot) or a session. Zero means no run or session.
type ID uint64

// String formats the ID as it is stored in etcd.
func (i ID) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// MarshalText formats the ID like String.
func (i ID) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText parses the format of String.
func (i *ID) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	*i = ID(n)
	return err
}

// RecordKind is the kind of a record, and the folder of its keys.
type RecordKind string

// These are the kinds of records. Their keys are below PREFIX/ownership/.
const (
	Nodes    RecordKind = "nodes"
	Sessions RecordKind = "sessions"
	VIPs     RecordKind = "vips"
	Moves    RecordKind = "moves"
	Fences   RecordKind = "fenced"
)

// Key identifies a record in etcd.
type Key struct {
	Kind RecordKind
	Name string
}

// Member is the record nodes/NODE, which a node writes under its lease.
type Member struct {
	Boot    ID        `json:"boot"`
	Machine string    `json:"machine"`
	At      []Address `json:"addresses"`
	Weight  int       `json:"weight"`
	Zone    string    `json:"zone,omitempty"`
	Version string    `json:"version,omitempty"`
	// Standby reports whether the node releases its VIPs and accepts no new VIPs.
	Standby bool `json:"standby,omitempty"`
	// StandbyBy is the operator's request for standby. It is known only on this node, for its own
	// events.
	StandbyBy Request `json:"-"`
	// Cannot maps each address that the node can't own or serve to the reason. Absent lists the
	// addresses in Cannot that the node can't even add to a device.
	Cannot map[netip.Addr]string `json:"cannot,omitempty"`
	Absent []netip.Addr          `json:"absent,omitempty"`
	// Announced lists the VIPs that operators have moved to the node since it started, and that it
	// announces. The newest is last. In the record of a version without this list, it is nil.
	Announced []Announcement `json:"announced"`
}

// Announcement reports that a VIP's owner has added the VIP to a device, and announces it.
// Generation is the Generation of the owner's record.
type Announcement struct {
	VIP        netip.Addr `json:"vip"`
	Generation int        `json:"gen"`
}

// maxAnnounced is the maximum number of announcements in a Member. One transaction moves at most
// maxClaimed VIPs.
const maxAnnounced = maxClaimed

// Announce adds announcements to the list, and removes the oldest if there are too many.
func (m *Member) Announce(added []Announcement) {
	all := slices.DeleteFunc(slices.Clone(m.Announced), func(old Announcement) bool {
		return slices.ContainsFunc(added, func(a Announcement) bool { return a.VIP == old.VIP })
	})
	all = append(all, added...)
	m.Announced = all[max(0, len(all)-maxAnnounced):]
}

// Announces reports whether the node announces a VIP, which it owns with this generation.
func (m *Member) Announces(vip netip.Addr, generation int) bool {
	return slices.Contains(m.Announced, Announcement{vip, generation})
}

// Address is an address at which a node receives heartbeats.
type Address struct {
	Addr netip.Addr `json:"address"`
	// Networks are the networks of the address's device that may hold VIPs. If empty, the device
	// holds no VIPs.
	Networks []netip.Prefix `json:"networks,omitempty"`
	// MAC is the device's MAC address as text.
	MAC string `json:"mac,omitempty"`
}

// holds reports whether the address's device may hold a VIP.
func (a Address) holds(vip netip.Addr) bool {
	return slices.ContainsFunc(a.Networks, func(p netip.Prefix) bool { return p.Contains(vip) })
}

// Reaches reports whether a network of the node's devices contains a VIP.
func (m *Member) Reaches(vip netip.Addr) bool { return m.place(vip) >= 0 }

// Lacks returns the reason why the node can't hold a VIP, or "". If force is set, the node must be
// able to add the VIP to a device, but not to serve it.
func (m *Member) Lacks(vip netip.Addr, force bool) string {
	if force && !slices.Contains(m.Absent, vip) {
		return ""
	}
	return m.Cannot[vip]
}

// place returns the index of an address in m.At whose device can hold a VIP, or -1.
func (m *Member) place(vip netip.Addr) int {
	return slices.IndexFunc(m.At, func(a Address) bool { return a.holds(vip) })
}

// Session is the record sessions/NODE. It contains the session's timing, and the jury (the nodes
// that may confirm and revoke the session).
type Session struct {
	ID      ID       `json:"id"`
	Machine string   `json:"machine"`
	Jury    []string `json:"jury"`
	Timing
}

// rebooted reports whether a and b (MACHINE-ID/BOOT/NAMESPACE) are different boots of the same
// machine. A reboot removes all VIPs that were bound before it. rebooted returns false for machines
// without an ID, because they can't be compared.
func rebooted(a, b string) bool {
	idA, bootA, _ := strings.Cut(a, "/")
	idB, bootB, _ := strings.Cut(b, "/")
	bootA, _, _ = strings.Cut(bootA, "/")
	bootB, _, _ = strings.Cut(bootB, "/")
	return idA != "" && idA == idB && bootA != bootB
}

// Owner is the record vips/ADDRESS, which names a VIP's owner.
type Owner struct {
	Node       string    `json:"node"`
	Session    ID        `json:"session"`
	Generation int       `json:"gen"`
	Since      time.Time `json:"since"`
	Why        string    `json:"why"`
}

// Requested reports whether an operator moved the VIP to the owner.
func (o Owner) Requested() bool { return o.Why == requested || o.Why == forced }

// Request records which operator requested a change, and why.
type Request struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// String formats the request as the end of a phrase, for example ` by ann: "kernel"`.
func (r Request) String() (text string) {
	if r.By != "" {
		text = " by " + r.By
	}
	if r.Reason != "" {
		text += fmt.Sprintf(": %q", r.Reason)
	}
	return text
}

// Move is the record moves/ADDRESS, a request to move a VIP and its group.
type Move struct {
	To string `json:"to,omitempty"` // "" means the best node other than the current owner
	Request
	// Until is when the command that made the request stops waiting, and etcd deletes the key.
	Until time.Time `json:"until"`
	// Force reports whether the VIP moves even if the node can't serve it. It then stays on the
	// node.
	Force bool `json:"force,omitempty"`
}

// Fence is the record fenced/NODE, an operator's assurance that the node is off.
type Fence struct{ Request }

// encode returns the JSON text of a record.
func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // impossible, because every record type can be encoded
	}
	return b
}
