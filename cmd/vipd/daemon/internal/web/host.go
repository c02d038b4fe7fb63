package web

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"

	"vipd/cmd/internal/config"
	"vipd/cmd/vipd/daemon/internal/httpserve"
)

// ownNames returns the names under which api.http answers, in lower case: this host's names, the
// listener's name, and the names in api.http_hosts.
func ownNames(c *config.Config) []string {
	listener, _, _ := net.SplitHostPort(c.API.HTTP) // the address was validated
	names := append([]string{"localhost", c.Node, listener}, c.API.HTTPHosts...)
	if host, err := os.Hostname(); err == nil {
		short, _, _ := strings.Cut(host, ".")
		names = append(names, host, short)
	}
	for i, name := range names {
		names[i] = strings.ToLower(name)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// onlyOwnNames rejects requests to names that are not this host's, to prevent DNS rebinding. A
// foreign web page could point its own name to this host, and a browser behind the firewall would
// read api.http for the page. Addresses can't be rebound, so any address is accepted.
func onlyOwnNames(h http.Handler, names []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.ToLower(strings.TrimSuffix(host, "."))
		// Every browser sends a Host header, but HTTP/1.0 probes may not.
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil || host == "" || slices.Contains(names, host) {
			h.ServeHTTP(w, r)
			return
		}
		httpserve.Refuse(w, http.StatusMisdirectedRequest, fmt.Errorf("%q is not a name of this host: use its address, or add the name to api.http_hosts and restart vipd", host))
	})
}

// exposure returns a warning if other hosts can read api.http at this address, or "".
func exposure(at net.Addr) string {
	listener, err := netip.ParseAddrPort(at.String())
	if err != nil || listener.Addr().Unmap().IsLoopback() {
		return ""
	}
	return fmt.Sprintf("%s shows services, endpoints, nodes and events without a password to every host that reaches it: "+
		"listen on 127.0.0.1, or restrict access with a firewall", listener)
}
