package api

import (
	"context"
	"net/http"
	"net/url"
	"time"
)

// Pending is a change that is served, and that reverts unless it is confirmed.
type Pending struct {
	// Place is the file that the change would replace, or its key in etcd.
	Place string `json:"place"`
	// InEtcd reports whether Place is a key in etcd.
	InEtcd bool   `json:"in_etcd,omitempty"`
	By     string `json:"by,omitempty"`
	// Since is the time of the change, and Until the time at which it reverts.
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
	// On are the nodes of a change in etcd; empty means all.
	On []string `json:"on,omitempty"`
}

// PendingText is a pending change with the text to confirm.
type PendingText struct {
	Pending
	Text string `json:"text"`
	// Former is the SHA-256 sum of the text that it replaces.
	Former string `json:"former"`
}

// PendingRequest starts a pending change of the daemon's configuration file.
type PendingRequest struct {
	// Name is the file in problems of Text.
	Name string `json:"name"`
	Text string `json:"text"`
	// Within is the time to confirm the change.
	Within time.Duration `json:"within_ns"`
	By     string        `json:"by,omitempty"`
}

// Try starts a pending change. If Reload.Refused is set, its problems prevented that.
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
