package host

import (
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/dataplane/internal/xtables"
	"vipd/test/lab"
)

// TestNoEndpoints removes the endpoints of services while programs on the host listen on the same
// ports. The setting no_endpoints determines whether clients are refused or get no answer. Clients
// must never reach the programs.
func TestNoEndpoints(t *testing.T) {
	l, client := network(t)
	l.Host().Sysctl("net.ipv4.ip_forward", "1")
	beyond := l.Add("beyond")
	l.Link(l.Host(), beyond, "10.7.0.1/24", "10.7.0.2/24")
	beyond.Default("10.7.0.1")
	ln, err := beyond.Listen("tcp", "10.7.0.2:80")
	must(t, err)
	defer func() { _ = ln.Close() }()
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	listen(t, 80)
	listen(t, 81)
	places := []string{"10.96.0.10:80", "[fd00:96::10]:80", "10.1.0.1:80", "[fd01::1]:80", "10.1.0.1:81", "10.7.0.2:80"}
	all := func(edit func(*balancer.Frontend)) (out []*balancer.Frontend) {
		for _, p := range places {
			f := frontend(p, edit)
			f.NodePort = strings.HasSuffix(p, ":81") || strings.HasPrefix(p, "10.7.") // the frontend is at one of the host's own addresses
			out = append(out, f)
		}
		return out
	}
	for _, c := range []struct {
		name string
		edit func(*balancer.Frontend)
		want outcome
	}{
		{"serving", func(*balancer.Frontend) {}, open},
		{"rejecting", func(f *balancer.Frontend) { f.Backends = nil }, refused},
		{"draining", func(f *balancer.Frontend) { f.Backends[0].State = balancer.Draining }, refused},
		{"serving again", func(*balancer.Frontend) {}, open},
		{"dropping", dropping, silence},
		{"serving in the end", func(f *balancer.Frontend) { f.NoEndpoints = balancer.DropClients }, open},
	} {
		apply(t, h, all(c.edit)...)
		for _, from := range []*lab.NS{client, l.Host()} {
			for _, p := range places {
				if got := attempt(t, from, p, c.want); got != c.want {
					t.Errorf("%s: %s to %s = %s, want %s", c.name, from.Name, p, got, c.want)
				}
			}
		}
		if c.want == refused {
			checkUDPRefused(t, client, "10.96.0.10:80")
		}
		checkIntact(t, h)
	}
}

// TestRejectedUntilWanted connects between Prepare and Finish. A frontend that will have endpoints
// must no longer reject clients. The port of a frontend that will have none must be closed.
func TestRejectedUntilWanted(t *testing.T) {
	_, client := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	listen(t, 80)
	none := func(f *balancer.Frontend) { f.Backends = nil }
	down := []*balancer.Frontend{frontend("10.1.0.1:80", none), frontend("10.96.0.10:80")}
	up := []*balancer.Frontend{frontend("10.1.0.1:80"), frontend("10.96.0.10:80", none)}
	apply(t, h, down...)
	checkAttempt(t, client, "10.1.0.1:80", refused)
	checkAttempt(t, client, "10.96.0.10:80", open)
	must(t, h.Prepare(t.Context(), desired(up...)))
	checkAttempt(t, client, "10.1.0.1:80", open)
	checkAttempt(t, client, "10.96.0.10:80", refused)

	// Neither frontend could be applied, so only their keys are known. Their addresses must stay.
	marks := desired(&balancer.Frontend{Key: up[0].Key}, &balancer.Frontend{Key: up[1].Key})
	must(t, h.Finish(t.Context(), marks.Frontends))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32")
	checkAttempt(t, client, "10.1.0.1:80", open)
	checkAttempt(t, client, "10.96.0.10:80", refused)
	must(t, h.Prepare(t.Context(), balancer.Desired{}))
	must(t, h.Finish(t.Context(), marks.Frontends))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32")
	checkIntact(t, h)
	finishNothing(t, h)
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128")
}

// TestMarksAddNoAddress removes one of the node's own addresses while an applied frontend uses it
// and only that frontend's key is known. vipd must not add the address.
func TestMarksAddNoAddress(t *testing.T) {
	l, _ := network(t)
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	h := newHost(t, o)
	l.Host().AddAddr("client", "10.1.0.7/24")
	mark := desired(&balancer.Frontend{Key: frontend("10.1.0.7:30080").Key})
	must(t, h.Prepare(t.Context(), balancer.Desired{}))
	must(t, h.Finish(t.Context(), mark.Frontends))
	l.Host().DelAddr("client", "10.1.0.7/24")
	checkIntact(t, h)
	must(t, h.Prepare(t.Context(), balancer.Desired{}))
	must(t, h.Finish(t.Context(), mark.Frontends))
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128")
	checkIntact(t, h)
	if p := h.Problems(); len(p) != 0 {
		t.Fatalf("problems = %v, want none", p)
	}
}

// TestReleaseOpensNothing connects to a closed port of a VIP during Refuse, Release and Cleanup.
// The port must never become open.
func TestReleaseOpensNothing(t *testing.T) {
	_, client := network(t)
	client.Sysctl("net.ipv4.ip_forward", "0")
	o := options(t, xtables.NFT)
	o.Interface = "lo"
	listen(t, 22)
	held := []*balancer.Frontend{frontend("10.96.0.10:80"), frontend("10.96.0.11:80", func(f *balancer.Frontend) { f.Backends = nil })}
	h := newHost(t, o)
	apply(t, h, held...)
	stop := knock(t, client, "10.96.0.10:22")
	must(t, h.Release(t.Context()))
	stop()
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128")

	listen(t, 80)
	h = newHost(t, o)
	apply(t, h, held...)
	checkAttempt(t, client, "10.96.0.10:80", open)
	must(t, h.Refuse(t.Context()))
	stop = knock(t, client, "10.96.0.10:80")
	checkDevice(t, "lo", "127.0.0.1/8", "::1/128", "10.96.0.10/32", "10.96.0.11/32")
	must(t, h.Release(t.Context()))
	stop()

	h = newHost(t, o)
	apply(t, h, held...)
	must(t, h.Close())
	stop = knock(t, client, "10.96.0.11:80")
	_, err := Cleanup(t.Context(), o, false)
	must(t, err)
	stop()
}
