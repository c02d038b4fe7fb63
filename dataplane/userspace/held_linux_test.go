package userspace

import (
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/host"
)

// TestRedirectsLeadToHeldAddresses makes a VIP the first address of an interface, so the kernel
// redirects packets to this VIP. The guard must accept these packets, although no frontend has the
// VIP and the port to which they are redirected.
func TestRedirectsLeadToHeldAddresses(t *testing.T) {
	w := newTwoHosts(t)
	w.serve()
	d := redirecting(t) // starts first, because its cleanup checks that nothing is open and so must run last
	o := host.DefaultOptions()
	o.Interface, o.Mode.Translates, o.RunDir = "remote", true, t.TempDir()
	h, err := host.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.Close() })
	w.remote.Route("10.96.0.9/32", "10.9.0.1")
	w.remote.Route("fd00:96::9/128", "fd00:9::1")
	var all []*balancer.Frontend
	var want balancer.Desired
	for _, f := range w.frontendsAt(t, 80) {
		key := strings.NewReplacer("10.96.0.1:", "10.96.0.9:", "::1]", "::9]").Replace(f.Key.String())
		f = frontendAt(key, f.Backends[0].Addr)
		all, want.Frontends = append(all, f), want.Frontends.Set(f.Key, f)
		want.Addresses = want.Addresses.Set(f.Addr, want.Addresses.At(f.Addr)+1)
	}
	if err := h.Prepare(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	d.apply(all...)
	if err := h.Finish(t.Context(), want.Frontends); err != nil {
		t.Fatal(err)
	}
	if first := w.Host().Exec("sh", "-c", "ip -6 -o address show dev remote scope global | head -n 1"); !strings.Contains(first, "fd00:96::9/128") {
		t.Skip("needs a kernel whose redirects lead to the VIP as the interface's first address, which is ", first)
	}
	wantServed(t, w, all...)
}
