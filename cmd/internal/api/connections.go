package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"vipd/balancer"
	"vipd/dataplane"
)

// Connections requests the live connections that q selects.
func (c *Client) Connections(ctx context.Context, q dataplane.ConnectionQuery) (all []Connection, err error) {
	return all, c.EachConnection(ctx, q, func(n Connection) error {
		all = append(all, n)
		return nil
	})
}

// EachConnection requests the live connections that q selects. It calls the function each once per
// connection, as the connections arrive.
func (c *Client) EachConnection(ctx context.Context, q dataplane.ConnectionQuery, each func(Connection) error) error {
	asking, s := c.bound(ctx, c.patience)
	defer s.end()
	response, err := c.send(asking, http.MethodGet, "/v1/connections?"+connectionValues(q).Encode(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	d := json.NewDecoder(s.restartingReader(response.Body))
	_, err = d.Token() // skip the opening bracket of the list
	for err == nil && d.More() {
		var n Connection
		if err = d.Decode(&n); err != nil {
			break
		}
		if err := each(n); err != nil {
			return err
		}
	}
	if err == nil {
		_, err = d.Token()
	}
	switch {
	case err != nil && asking.Err() != nil:
		return context.Cause(asking)
	case err != nil:
		return fmt.Errorf("reading the connections: vipd at %s cut the answer short: %w; write a long list to a file, because vipd waits at most 30 s for a slow reader", c.socket, err)
	}
	return nil
}

// ConnectionEvent is an event in the answer to FollowConnections.
type ConnectionEvent struct {
	// Event is Following, Began, Ended or Missed.
	Event      string      `json:"event"`
	At         time.Time   `json:"at,omitzero"`
	Connection *Connection `json:"connection,omitempty"`
}

// These are the values of ConnectionEvent.Event. Following is the first event. Missed means that
// the starts or ends of some connections were not reported.
const (
	Following = "following"
	Began     = "begin"
	Ended     = "end"
	Missed    = "missed"
)

// Killed is the result of Kill: the number of connections that it ended.
type Killed struct {
	Connections int `json:"connections"`
}

// FollowConnections requests events about connections that match q. It calls the function each when
// such a connection starts or ends, until the function returns an error or ctx is done.
func (c *Client) FollowConnections(ctx context.Context, q dataplane.ConnectionQuery, each func(ConnectionEvent) error) error {
	values := connectionValues(q)
	values.Set("follow", "1")
	return follow(ctx, c, nil, "following connections", "/v1/connections?"+values.Encode(), each)
}

// Kill ends the connections that q selects. by is the operator, or "" if unknown.
func (c *Client) Kill(ctx context.Context, q dataplane.ConnectionQuery, by string) (k Killed, err error) {
	values := connectionValues(q)
	values.Set("by", by)
	return k, c.call(ctx, http.MethodPost, "/v1/connections/kill?"+values.Encode(), nil, &k)
}

// connectionValues encodes a query for ParseConnectionQuery.
func connectionValues(q dataplane.ConnectionQuery) url.Values {
	values := url.Values{}
	for name, value := range map[string]string{
		"service": string(q.Service), "state": q.State, "client": placeText(q.Client), "endpoint": placeText(q.Backend),
	} {
		if value != "" {
			values.Set(name, value)
		}
	}
	return values
}

// ParseConnectionQuery parses the filter in a request for connections.
func ParseConnectionQuery(from url.Values) (q dataplane.ConnectionQuery, err error) {
	q.Service, q.State = balancer.Name(from.Get("service")), from.Get("state")
	for name, at := range map[string]*netip.AddrPort{"client": &q.Client, "endpoint": &q.Backend} {
		if text := from.Get(name); text != "" {
			t, err := balancer.ParseTarget("", text)
			if err != nil {
				return q, fmt.Errorf("%s: %w", name, err)
			}
			*at = netip.AddrPortFrom(t.Addr, t.Port)
		}
	}
	return q, nil
}

// placeText formats an address and port as ADDRESS or ADDRESS:PORT. It returns "" for the zero
// value.
func placeText(a netip.AddrPort) string {
	if !a.Addr().IsValid() {
		return ""
	}
	return balancer.Target{Addr: a.Addr(), Port: a.Port()}.Address()
}
