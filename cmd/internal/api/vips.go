package api

import (
	"context"
	"net/http"
	"net/netip"
	"time"

	"vipd/balancer"
	"vipd/balancer/failover/vrrp"
)

// Ownership describes the VIPs with one owner on a host that decides by VRRP: GET /v1/vips.
type Ownership struct {
	Node string `json:"node"`
	// Standby is an operator's request that this host owns no VIP; nil means there is none.
	Standby *Standby `json:"standby,omitempty"`
	// Unknown says why the state of the groups is not known; "" means it is.
	Unknown string       `json:"unknown,omitempty"`
	Groups  []OwnerGroup `json:"groups"`
	VIPs    []GroupVIP   `json:"vips"`
}

// Standby is a request that a host owns no VIP.
type Standby struct {
	By     string    `json:"by,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Since  time.Time `json:"since"`
}

// OwnerGroup is the state of a group of VRRP.
type OwnerGroup struct {
	vrrp.GroupStatus
	// Changes are the last changes, the newest last, including those of earlier processes.
	Changes []GroupChange `json:"changes,omitempty"`
}

// GroupChange is a change of the state of a group of VRRP.
type GroupChange struct {
	At   time.Time  `json:"at"`
	From vrrp.State `json:"from"`
	To   vrrp.State `json:"to"`
	// Why is a word for metrics, and Text the same for operators.
	Why  string `json:"why"`
	Text string `json:"text"`
}

// GroupVIP is a VIP of a group.
type GroupVIP struct {
	VIP   netip.Addr `json:"vip"`
	Group string     `json:"group,omitempty"`
	// Require is the condition to own it, and Cannot the reason why this host can't serve it; ""
	// means it can.
	Require  balancer.Require `json:"require"`
	Cannot   string           `json:"cannot,omitempty"`
	Services []string         `json:"services"`
}

// Group returns the state of a group; nil means that it is not known.
func (o *Ownership) Group(name string) *OwnerGroup {
	for i := range o.Groups {
		if o.Groups[i].Name == name {
			return &o.Groups[i]
		}
	}
	return nil
}

// StandbyRequest puts this host on standby, or ends that: POST /v1/standby.
type StandbyRequest struct {
	On     bool   `json:"on"`
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// MoveRequest names the operator of a move, and the reason: POST /v1/vips/VIP/move.
type MoveRequest struct {
	By     string `json:"by,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// Ownership requests the VIPs with one owner of a host that decides by VRRP.
func (c *Client) Ownership(ctx context.Context) (o Ownership, err error) {
	return o, c.call(ctx, http.MethodGet, "/v1/vips", nil, &o)
}

// MoveVIP makes this host give the group of a VIP to another host. It returns the state before
// another host owns the VIP.
func (c *Client) MoveVIP(ctx context.Context, vip netip.Addr, by MoveRequest) (o Ownership, err error) {
	return o, c.call(ctx, http.MethodPost, "/v1/vips/"+vip.String()+"/move", by, &o)
}

// Standby puts this host on standby, or ends that.
func (c *Client) Standby(ctx context.Context, q StandbyRequest) (o Ownership, err error) {
	return o, c.call(ctx, http.MethodPost, "/v1/standby", q, &o)
}
