package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"vipd/balancer/failover/vrrp"
)

// These are the names of two sockets in run_dir: vipd owner's socket, and the socket through which
// vipd hands over to a vipd that is started with --replace.
const (
	OwnerSocket    = "owner.sock"
	HandoverSocket = "handover.sock"
)

// OwnedVIP describes a VIP with hold = "one" in an OwnerReport.
type OwnedVIP struct {
	Prefer  []string      `json:"prefer,omitempty"`
	Preempt time.Duration `json:"preempt,omitempty"`
	Group   string        `json:"group,omitempty"`
	// Cannot is the reason why vipd can't currently serve the VIP on this host, or "".
	Cannot string `json:"cannot,omitempty"`
	// Serves reports whether a service uses the VIP. KeepsSource reports whether endpoints see
	// clients' addresses, so replies must return through the owner.
	Serves      bool `json:"serves,omitempty"`
	KeepsSource bool `json:"keeps_source,omitempty"`
}

// OwnerReport is the report that vipd sends to vipd owner each second: POST /vips.
type OwnerReport struct {
	VIPs map[netip.Addr]OwnedVIP `json:"vips"`
	// Grace is how long vipd may send no report before it counts as failed.
	Grace time.Duration `json:"grace"`
	// Standby reports whether an operator wants this host to own no VIPs. If etcd decides who owns
	// VIPs, vipd owner reads this from etcd instead.
	Standby bool `json:"standby,omitempty"`
}

// Groups maps each VIP to the group that it names.
func (r *OwnerReport) Groups() map[netip.Addr]string {
	groups := map[netip.Addr]string{}
	for a, v := range r.VIPs {
		groups[a] = v.Group
	}
	return groups
}

// OwnerStatus is the state of vipd owner: GET /status, and the answer to POST /vips.
type OwnerStatus struct {
	Node    string `json:"node"`
	Session string `json:"session,omitempty"`
	// Gate is open, opening, closing or closed. Left is how long the session's confirmation remains
	// valid, in seconds.
	Gate string  `json:"gate"`
	Left float64 `json:"left"`
	// Etcd is the reason why etcd is unreachable, or "".
	Etcd string `json:"etcd,omitempty"`
	// EtcdAway is the duration of etcd's outage so far, in seconds.
	EtcdAway float64 `json:"etcd_away,omitempty"`
	// Confirmed maps each juror to the age of its newest confirmation in seconds, or -1 if there is
	// none.
	Confirmed map[string]float64 `json:"confirmed,omitempty"`
	// VRRP is the state of the VRRP groups, or nil if etcd decides who owns VIPs.
	VRRP *vrrp.Status `json:"vrrp,omitempty"`
	// RouterIDs lists the IDs of other VRRP routers on this host's LANs, except its own groups'
	// IDs.
	RouterIDs []int `json:"router_ids,omitempty"`
	// Bound lists the VIPs that are on this host.
	Bound []netip.Addr `json:"bound,omitempty"`
	// Unowned lists VIPs that no live host owns.
	Unowned []netip.Addr `json:"unowned,omitempty"`
	// Waiting lists the silent hosts whose VIPs stay without an owner, because too few members of
	// their juries (the hosts that judge whether they are alive) respond. It maps each of these
	// hosts to the silent members of its jury. A host belongs to its own jury.
	Waiting map[string][]string `json:"waiting,omitempty"`
	// Peers lists the other hosts. A host is listed once for each network on which its heartbeats
	// are expected.
	Peers []OwnerPeer `json:"peers,omitempty"`
	// Unplaced lists VIPs that are not in any network of this host's devices.
	Unplaced []netip.Addr `json:"unplaced,omitempty"`
	// Rivals lists other hosts that claimed this host's VIPs. Announced is the number of
	// announcements that this host sent.
	Rivals    []OwnerRival `json:"rivals,omitempty"`
	Announced uint64       `json:"announced"`
	// Took, Gave and GateClosed count events by reason. Foreign counts datagrams with a different
	// key. Late is the longest delay in refreshing the gate, in seconds.
	Took       map[string]int `json:"took,omitempty"`
	Gave       map[string]int `json:"gave,omitempty"`
	GateClosed map[string]int `json:"gate_closed,omitempty"`
	// ConfirmedFor is a histogram of how long the session's confirmation remained valid, sampled
	// every 10 ms. TakenAfter is a histogram of how long VIPs had no owner before this host took
	// them over. Both are in seconds.
	ConfirmedFor Histogram `json:"confirmed_for"`
	TakenAfter   Histogram `json:"taken_after"`

	Foreign int64   `json:"foreign"`
	Late    float64 `json:"late"`
	// Hindered lists the reasons why vipd owner may be late.
	Hindered []string `json:"hindered,omitempty"`
	// VIPs holds the VIPs in vipd's latest report. It is only set in the answer to GET /status.
	VIPs map[netip.Addr]OwnedVIP `json:"vips,omitempty"`
	// Problems lists the reasons why this host can't own VIPs.
	Problems []string `json:"problems,omitempty"`
	// Events lists the latest events, with increasing numbers.
	Events []OwnerEvent `json:"events,omitempty"`
}

// OwnerPeer is another host on a network.
type OwnerPeer struct {
	Node string `json:"node"`
	// Network is the network of a device for VIPs, or this host's address on the path to etcd.
	Network string `json:"network"`
	// Addresses lists the host's addresses on that network.
	Addresses []netip.Addr `json:"addresses"`
	// Up reports whether a heartbeat arrived on that network recently.
	Up bool `json:"up"`
}

// Histogram counts values by HistogramBounds.
type Histogram struct {
	// Counts holds the number of values up to each bound. Count is the number of all values, and
	// Sum is their sum.
	Counts [buckets]uint64 `json:"counts"`
	Count  uint64          `json:"count"`
	Sum    float64         `json:"sum"`
}

const buckets = 21

// HistogramBounds returns the bounds of every histogram in OwnerStatus, in seconds. The bounds are
// closest together in the range of values that ownership.detect leads to.
func HistogramBounds() [buckets]float64 {
	return [...]float64{0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.5, 2, 4, 8, 16}
}

// Observe counts a value.
func (h *Histogram) Observe(seconds float64) {
	for i, b := range HistogramBounds() {
		if seconds <= b {
			h.Counts[i]++
		}
	}
	h.Count++
	h.Sum += seconds
}

// OwnerRival is another host that claims one of this host's VIPs.
type OwnerRival struct {
	VIP netip.Addr `json:"vip"`
	MAC string     `json:"mac"`
	// Node is the fleet's node that has the MAC address, or "".
	Node string `json:"node,omitempty"`
	// Count is the number of claims, at most one a second. Last is the time of the last claim.
	Count int       `json:"count"`
	Last  time.Time `json:"last"`
}

// OwnerEvent is an action that vipd owner took.
type OwnerEvent struct {
	Number int       `json:"number"`
	Time   time.Time `json:"time"`
	Text   string    `json:"text"`
}

// OwnerClient is a client of the vipd owner on this host.
type OwnerClient struct{ http http.Client }

// NewOwnerClient returns a client of the owner at socket. It does not connect yet.
func NewOwnerClient(socket string) *OwnerClient {
	return &OwnerClient{http.Client{Timeout: 5 * time.Second, Transport: over(socket)}}
}

// Close closes idle connections.
func (c *OwnerClient) Close() { c.http.CloseIdleConnections() }

// Status returns the owner's status.
func (c *OwnerClient) Status(ctx context.Context) (*OwnerStatus, error) {
	return c.ask(ctx, http.MethodGet, "/status", nil)
}

// Report reports VIPs to the owner, and returns the owner's status.
func (c *OwnerClient) Report(ctx context.Context, report OwnerReport) (*OwnerStatus, error) {
	text, err := json.Marshal(report)
	if err != nil {
		return nil, err
	}
	return c.ask(ctx, http.MethodPost, "/vips", text)
}

// Move passes a VIP's group to another host, if VRRP decides who owns the VIP. It returns before
// the other host owns the VIP.
func (c *OwnerClient) Move(ctx context.Context, vip netip.Addr) error {
	_, err := c.ask(ctx, http.MethodPost, "/vips/"+vip.String()+"/move", nil)
	return err
}

// Resume permits VRRP groups that were moved away to preempt other hosts again.
func (c *OwnerClient) Resume(ctx context.Context) error {
	_, err := c.ask(ctx, http.MethodPost, "/resume", nil)
	return err
}

func (c *OwnerClient) ask(ctx context.Context, method, path string, body []byte) (*OwnerStatus, error) {
	r, err := http.NewRequestWithContext(ctx, method, "http://owner"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := c.http.Do(r)
	if err != nil {
		return nil, errors.Unwrap(err) // omit the URL, which means nothing to users
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body) // an unread body would close the connection, and vipd owner would assume that vipd has exited
	if err != nil {
		return nil, err
	}
	if answer.StatusCode != http.StatusOK {
		return nil, errors.New(cmp.Or(strings.TrimSpace(string(text)), "unexpected HTTP status "+answer.Status))
	}
	var s OwnerStatus
	return &s, json.Unmarshal(text, &s)
}
