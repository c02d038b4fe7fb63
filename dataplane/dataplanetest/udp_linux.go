package dataplanetest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"vipd/balancer"
	"vipd/test/lab"
)

// awaitMove sends requests on a UDP flow until a server other than the one with this name answers.
// It returns that answer.
func awaitMove(r *rig, c net.Conn, key balancer.Key, name string) (a lab.Answer) {
	r.Helper()
	lab.Eventually(r, time.Second, fmt.Sprintf("%s: a flow moves from %q", key, name), func() (err error) {
		a, err = lab.AskWithin(c, patience(2*unanswered))
		if err == nil && a.Server == name {
			err = errors.New("it still answers")
		}
		return err
	})
	return a
}

// caller is a UDP client that sends requests from one port continuously, even if it gets no answer.
type caller struct {
	key     balancer.Key
	mu      sync.Mutex
	answers []string // name of the server that answered each request; "" means no answer
}

// startCaller starts sending requests to a frontend. The frontend does not need to exist yet.
func startCaller(r *rig, key balancer.Key) *caller {
	r.Helper()
	conn, err := r.open(r.w.client, netip.Addr{}, key, atOnce)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() { _ = conn.Close() })
	c := &caller{key: key}
	repeatedly(r, 5*time.Millisecond, func() {
		a, _ := lab.AskWithin(conn, patience(unanswered)) // without an answer, the server's name is empty
		c.mu.Lock()
		defer c.mu.Unlock()
		c.answers = append(c.answers, a.Server)
	})
	return c
}

func (c *caller) since(n int) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.answers[n:])
}

// checkAnswers waits until the server named want has answered the last five requests of each
// caller. If want is "", the last five requests must have no answer.
func checkAnswers(r *rig, all []*caller, when, want string) {
	r.Helper()
	const inARow = 5
	before := make([]int, len(all))
	for i, c := range all {
		before[i] = len(c.since(0))
	}
	for i, c := range all {
		lab.Eventually(r, time.Second+inARow*unanswered, fmt.Sprintf("%s: %s, only answers from %q", c.key, when, want), func() error {
			heard := c.since(before[i])
			last := heard[max(0, len(heard)-inARow):]
			if len(last) < inARow || slices.ContainsFunc(last, func(s string) bool { return s != want }) {
				return fmt.Errorf("servers of the last answers = %q", last)
			}
			return nil
		})
	}
}

// testUDPFollows continuously sends datagrams from fixed ports while a service changes. After each
// change, the expected server must answer each client.
func testUDPFollows(r *rig) {
	var all []*caller
	for i := range r.w.vip {
		all = append(all, startCaller(r, keyOf(r.w.vip[i], vipPort, balancer.UDP)), startCaller(r, keyOf(vipN(11)[i], vipPort, balancer.UDP)),
			startCaller(r, keyOf(r.w.node[i], nodePort, balancer.UDP)))
	}
	web := newService("web", r.w.vip)
	web.VIPs = append(vipN(11).slice(), web.VIPs...)
	for i := range web.Ports {
		web.Ports[i].NodePort = nodePort
	}
	s := r.w.servers
	on := func(servers ...*server) []*balancer.Service {
		return []*balancer.Service{edited(web, func(s *balancer.Service) { s.Endpoints = endpoints(servers...) })}
	}
	for _, step := range []struct {
		when string
		want []*balancer.Service
		hear string
	}{
		{"before the service", nil, ""},
		{"when the service is added", on(s[0]), "s1"},
		{"when its endpoint is replaced", on(s[1]), "s2"},
		{"when another endpoint is added", on(s[1], s[2]), "s2"},
		{"when that endpoint is removed", on(s[1]), "s2"},
		{"scaled to 0", on(), ""},
		{"scaled to 1", on(s[2]), "s3"},
		{"when the service is removed", nil, ""},
		{"when it is back", on(s[0]), "s1"},
	} {
		r.apply(step.want...)
		checkAnswers(r, all, step.when, step.hear)
	}
}
