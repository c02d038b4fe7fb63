package api

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"vipd/balancer"
)

// Traffic holds a node's counters at one point in time.
type Traffic struct {
	At   time.Time `json:"at"`
	Node string    `json:"node"`
	// Mode is the mode in use.
	Mode     string           `json:"mode"`
	Services []ServiceTraffic `json:"services"`
}

// ServiceTraffic holds a service's counters since the daemon started.
type ServiceTraffic struct {
	Name        balancer.Name `json:"name"`
	Connections uint64        `json:"connections"`
	// In and Out are the numbers of bytes from and to clients. They are 0 if the kernel does not
	// count bytes.
	In  uint64 `json:"bytes_in"`
	Out uint64 `json:"bytes_out"`
	// Unanswered counts new connections that endpoints did not answer. See [Endpoint] for the
	// details.
	Unanswered uint64 `json:"unanswered"`
	// Active counts open connections. Up and Of describe the port with the fewest usable endpoints:
	// Up is the number of its endpoints that get new connections, and Of the number of all its
	// endpoints.
	Active uint64 `json:"active"`
	Up     int    `json:"up"`
	Of     int    `json:"of"`
	// Ports holds the numbers of endpoints for each port.
	Ports Use `json:"ports,omitempty"`
	// Endpoints is set only if it was requested.
	Endpoints []EndpointTraffic `json:"endpoints,omitempty"`
}

// EndpointTraffic holds an endpoint's counters and state at one of its service's ports.
type EndpointTraffic struct {
	Address     string                `json:"address"`
	TargetPorts balancer.PortRange    `json:"target_ports,omitzero"`
	Port        string                `json:"port,omitempty"`
	State       balancer.BackendState `json:"state"`
	Health      balancer.Verdict      `json:"health,omitempty"`
	Weight      int                   `json:"weight"`
	Active      uint64                `json:"active"`
	Connections uint64                `json:"connections"`
	// Unanswered has the same meaning as in [Endpoint].
	Unanswered uint64 `json:"unanswered"`
}

// Place is like [Endpoint.Place].
func (e *EndpointTraffic) Place() string { return placeOf(e.Address, e.TargetPorts) }

// Traffic requests the counters, sorted by service and address.
func (c *Client) Traffic(ctx context.Context) (t Traffic, err error) {
	return t, c.call(ctx, http.MethodGet, "/v1/traffic", nil, &t)
}

// TrafficOf requests the counters, including the counters of one service's endpoints. If service is
// "", endpoints are omitted.
func (c *Client) TrafficOf(ctx context.Context, service balancer.Name) (t Traffic, err error) {
	return t, c.call(ctx, http.MethodGet, "/v1/traffic?endpoints="+url.QueryEscape(string(service)), nil, &t)
}
