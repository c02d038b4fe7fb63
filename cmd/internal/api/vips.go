package api

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/failover/vrrp"
)

// Ownership describes the VIPs with one owner on a host that uses VRRP: GET /v1/vips.
type Ownership struct {
	Node string `json:"node"`
	// Standby is an operator's request that this host own no VIPs, or nil.
	Standby *Standby `json:"standby,omitempty"`
	// Unknown is the reason why the groups' state is unknown, or "".
	Unknown string       `json:"unknown,omitempty"`
	Groups  []OwnerGroup `json:"groups"`
	VIPs    []GroupVIP   `json:"vips"`
}

// Standby is a request that a host own no VIPs.
type Standby struct {
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// OwnerGroup is a VRRP group's state.
type OwnerGroup struct {
	vrrp.GroupStatus
	// Changes lists the latest state changes, including changes from before vipd owner restarted.
	// The newest is last.
	Changes []GroupChange `json:"changes,omitempty"`
}

// GroupChange is a change to a VRRP group's state.
type GroupChange struct {
	At   time.Time  `json:"at"`
	From vrrp.State `json:"from"`
	To   vrrp.State `json:"to"`
	// Why is the reason as a single word for metrics, and Text is the reason as text for operators.
	Why  string `json:"why"`
	Text string `json:"text"`
}

// GroupVIP is a VIP in a VRRP group.
type GroupVIP struct {
	VIP   netip.Addr `json:"vip"`
	Group string     `json:"group,omitempty"`
	// Require is the condition for owning the VIP. Cannot is the reason why this host can't serve
	// it, or "".
	Require  balancer.Require `json:"require"`
	Cannot   string           `json:"cannot,omitempty"`
	Services []string         `json:"services"`
}

// Group returns a group's state, or nil if it is unknown.
func (o *Ownership) Group(name string) *OwnerGroup {
	for i := range o.Groups {
		if o.Groups[i].Name == name {
			return &o.Groups[i]
		}
	}
	return nil
}

// StandbyRequest puts this host on standby or ends the standby: POST /v1/standby.
type StandbyRequest struct {
	On     bool   `json:"on"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// MoveRequest names the operator who moves a VIP, and the reason: POST /v1/vips/VIP/move.
type MoveRequest struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Ownership requests the VIPs with one owner from a host that uses VRRP.
func (c *Client) Ownership(ctx context.Context) (o Ownership, err error) {
	return o, c.call(ctx, http.MethodGet, "/v1/vips", nil, &o)
}

// MoveVIP makes this host pass a VIP's group to another host. The result may describe the state
// before another host owns the VIP.
func (c *Client) MoveVIP(ctx context.Context, vip netip.Addr, by MoveRequest) (o Ownership, err error) {
	return o, c.call(ctx, http.MethodPost, "/v1/vips/"+vip.String()+"/move", by, &o)
}

// Standby puts this host on standby or ends the standby.
func (c *Client) Standby(ctx context.Context, q StandbyRequest) (o Ownership, err error) {
	return o, c.call(ctx, http.MethodPost, "/v1/standby", q, &o)
}
