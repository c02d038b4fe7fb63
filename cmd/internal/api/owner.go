package api

import (
	"net/netip"
	"time"
)

// OwnerSocket is the name of the socket of "vipd owner" in run_dir.
const OwnerSocket = "owner.sock"

// OwnedVIP is what vipd tells the owner of a VIP with hold = "one".
type OwnedVIP struct {
	Prefer  []string      `json:"prefer,omitempty"`
	Preempt time.Duration `json:"preempt,omitempty"`
	Group   string        `json:"group,omitempty"`
	// Cannot is why vipd could not serve it here now; "" means it could.
	Cannot string `json:"cannot,omitempty"`
}

// OwnerTold is what vipd tells the owner each second: POST /vips.
type OwnerTold struct {
	VIPs map[netip.Addr]OwnedVIP `json:"vips"`
	// Grace is how long vipd may be silent.
	Grace time.Duration `json:"grace"`
}

// OwnerStatus is how the owner is: GET /status, and the answer to POST /vips.
type OwnerStatus struct {
	Node    string `json:"node"`
	Session string `json:"session,omitempty"`
	// Gate is open, opening, closing or closed; Left is how long the session is confirmed from now, in seconds.
	Gate string  `json:"gate"`
	Left float64 `json:"left"`
	// Etcd is what is in the way of etcd; "" means nothing.
	Etcd string `json:"etcd,omitempty"`
	// Confirmed has the age of each juror's newest confirmation, in seconds; -1 means there is none.
	Confirmed map[string]float64 `json:"confirmed,omitempty"`
	// Bound are the VIPs that are here.
	Bound []netip.Addr `json:"bound,omitempty"`
	// Unowned are VIPs that no live host owns.
	Unowned []netip.Addr `json:"unowned,omitempty"`
	// Unplaced are VIPs that are in the network of none of this host's devices.
	Unplaced []netip.Addr `json:"unplaced,omitempty"`
	// Rivals are other hosts that said they have VIPs which are here. Announced counts announcements.
	Rivals    []OwnerRival `json:"rivals,omitempty"`
	Announced uint64       `json:"announced"`
	// Took, Gave and GateClosed count by reason; Foreign counts datagrams with another key; Late is the longest delay of a
	// refresh, in seconds.
	Took       map[string]int `json:"took,omitempty"`
	Gave       map[string]int `json:"gave,omitempty"`
	GateClosed map[string]int `json:"gate_closed,omitempty"`
	Foreign    int64          `json:"foreign"`
	Late       float64        `json:"late"`
	// Problems are what keeps this host from owning, in words.
	Problems []string `json:"problems,omitempty"`
	// Events are the last ones, with a number that grows.
	Events []OwnerEvent `json:"events,omitempty"`
}

// OwnerRival is another host that says it has a VIP which is here.
type OwnerRival struct {
	VIP netip.Addr `json:"vip"`
	MAC string     `json:"mac"`
	// Node is that of the fleet that has the MAC; "" means none.
	Node string `json:"node,omitempty"`
	// Count is how often that was heard, at most once a second, and Last when.
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
}

// OwnerEvent is something that the owner did.
type OwnerEvent struct {
	Number int       `json:"number"`
	Time   time.Time `json:"time"`
	Text   string    `json:"text"`
}
