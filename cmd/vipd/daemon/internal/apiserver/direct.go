package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"

	"vipd/balancer"
	"vipd/cmd/internal/api"
	"vipd/cmd/vipd/daemon/internal/httpserve"
	"vipd/dataplane/failover"
	"vipd/dataplane/realserver"
)

const (
	// maxPaths is the maximum number of paths that a request tests.
	maxPaths = 200
	// pathsAtOnce is the number of paths that are tested at the same time.
	pathsAtOnce = 16
)

// postCheckDirect tests the paths of services with forward = "dr".
func (srv server) postCheckDirect(w http.ResponseWriter, r *http.Request) {
	var q api.DirectRequest
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		httpserve.Refuse(w, http.StatusBadRequest, err)
		return
	}
	s := srv.Views.Model.State()
	if q.Service != "" {
		if _, err := s.Place().Service(q.Service); err != nil {
			httpserve.Refuse(w, http.StatusBadRequest, err)
			return
		}
	}
	paths, tests := []api.DirectPath{}, []realserver.Path{}
	for k, f := range s.Desired.Frontends.All() {
		if f.Forward != balancer.DRForward || f.NodePort || q.Service != "" && f.Service != q.Service {
			continue
		}
		for _, b := range f.Backends {
			if b.State == balancer.Active || b.State == balancer.Down {
				paths = append(paths, api.DirectPath{Service: f.Service, Frontend: k, Endpoint: b.Addr.Addr()})
				tests = append(tests, realserver.Path{VIP: f.AddrPort(), Endpoint: b.Addr.Addr(), TCP: f.Proto == balancer.TCP})
			}
		}
	}
	switch {
	case len(paths) == 0 && q.Service != "":
		httpserve.Refuse(w, http.StatusBadRequest, fmt.Errorf("this host forwards no packets of %s by direct routing: the service needs forward = \"dr\", an endpoint, and ipvs or nftables mode", q.Service))
		return
	case len(paths) == 0:
		httpserve.Refuse(w, http.StatusBadRequest, fmt.Errorf("this host forwards no packets by direct routing: a service needs forward = \"dr\", an endpoint, and ipvs or nftables mode"))
		return
	case len(paths) > maxPaths:
		httpserve.Refuse(w, http.StatusBadRequest, fmt.Errorf("the test would cover %d VIPs and endpoints, but the maximum is %d: name a SERVICE", len(paths), maxPaths))
		return
	}
	testPaths(r.Context(), paths, tests)
	httpserve.Answer(w, paths)
}

func testPaths(ctx context.Context, paths []api.DirectPath, tests []realserver.Path) {
	claims := linkClaims{vips: map[netip.Addr]bool{}, links: map[string]linkAnswer{}}
	for _, p := range tests {
		claims.vips[p.VIP.Addr()] = true
	}
	gateway := realserver.Gateway{Own: ownAddress, Holds: holds, Claimed: func(device string, vip netip.Addr) (net.HardwareAddr, error) {
		answer := claims.of(ctx, device)
		return answer.hosts[vip], answer.err
	}}
	var running sync.WaitGroup
	free := make(chan bool, pathsAtOnce)
	for i := range paths {
		free <- true
		running.Go(func() {
			paths[i].Findings = gateway.Check(ctx, tests[i])
			<-free
		})
	}
	running.Wait()
}

// linkClaims asks once on each link for the hosts that have the VIPs.
type linkClaims struct {
	vips  map[netip.Addr]bool
	mu    sync.Mutex // held while a link is asked
	links map[string]linkAnswer
}

// linkAnswer contains the MAC addresses of the hosts on a link that have VIPs.
type linkAnswer struct {
	hosts map[netip.Addr]net.HardwareAddr
	err   error
}

// of returns the hosts on a device's link that have VIPs.
func (c *linkClaims) of(ctx context.Context, device string) linkAnswer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, asked := c.links[device]; !asked {
		var vips []netip.Addr
		for vip := range c.vips {
			vips = append(vips, vip)
		}
		hosts, err := failover.Elsewhere(ctx, device, vips)
		c.links[device] = linkAnswer{hosts, err}
	}
	return c.links[device]
}

// holds reports whether a device of this host has the address a.
func holds(a netip.Addr) bool {
	all, _ := net.InterfaceAddrs() // without addresses, this host holds nothing
	return slices.ContainsFunc(all, func(has net.Addr) bool {
		p, err := netip.ParsePrefix(has.String())
		return err == nil && p.Addr() == a
	})
}

// ownAddress returns one of a device's IPv4 addresses, or of its IPv6 addresses if is4 is false.
func ownAddress(device string, is4 bool) netip.Addr {
	d, err := net.InterfaceByName(device)
	if err != nil {
		return netip.Addr{}
	}
	addrs, _ := d.Addrs() // without addresses, the server can't answer
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() == is4 && !p.Addr().IsLinkLocalUnicast() && !p.IsSingleIP() {
			return p.Addr()
		}
	}
	return netip.Addr{}
}
