package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Pending is a change that is in effect, and that is reverted unless it is confirmed.
type Pending struct {
	// Place is the file that the change would replace, or the change's key in etcd.
	Place string `json:"place"`
	// InEtcd reports whether Place is a key in etcd.
	InEtcd bool   `json:"in_etcd,omitempty"`
	By     string `json:"by,omitempty"`
	// Since is the time of the change. Until is the time when the change is reverted.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// On lists the nodes to which a change in etcd applies. If empty, it applies to all nodes.
	On []string `json:"on,omitempty"`
}

// PendingText is a pending change with its text.
type PendingText struct {
	Pending
	Text string `json:"text"`
	// Former is the SHA-256 checksum of the text that Text replaces.
	Former string `json:"former"`
}

// PendingRequest starts a pending change to the daemon's configuration file.
type PendingRequest struct {
	// Name is the file name to mention in problems with Text.
	Name string `json:"name"`
	Text string `json:"text"`
	// Within is how long the change stays in effect unless it is confirmed.
	Within time.Duration `json:"within_ns"`
	By     string        `json:"by,omitempty"`
}

// Try starts a pending change. If Reload.Refused is set, Reload.Problems prevented the change.
func (c *Client) Try(ctx context.Context, q PendingRequest) (r Reload, err error) {
	return r, c.call(ctx, http.MethodPost, "/v1/pending", q, &r)
}

// Pending requests the pending change with its text.
func (c *Client) Pending(ctx context.Context) (p PendingText, err error) {
	return p, c.call(ctx, http.MethodGet, "/v1/pending", nil, &p)
}

// Abort reverts the pending change on behalf of the operator by.
func (c *Client) Abort(ctx context.Context, by string) (r Reload, err error) {
	return r, c.call(ctx, http.MethodPost, "/v1/pending/abort?"+url.Values{"by": {by}}.Encode(), nil, &r)
}
