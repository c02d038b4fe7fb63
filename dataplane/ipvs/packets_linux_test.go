package ipvs

import (
	"os"
	"testing"
	"time"

	"vipd/balancer"
	"vipd/test/wait"
)

// TestIPVSServes has clients reach every server in turn, by connections and by flows, and nobody any more when the
// frontend is gone.
func TestIPVSServes(t *testing.T) {
	r := newRig(t)
	for _, proto := range []balancer.Protocol{balancer.TCP, balancer.UDP} {
		r.set(r.web(proto, 2, 3))
		met := map[string]int{}
		for range 6 {
			_, name := r.dial(proto)
			met[name]++
		}
		if met["s2"] != 3 || met["s3"] != 3 {
			t.Errorf("%s: 6 connections went to %v", proto, met)
		}
		r.set()
		if _, name, err := r.tryDial(proto); err == nil {
			t.Errorf("%s: %s answers though the frontend is gone", proto, name)
		}
	}
}

// TestIPVSDrains has connections of an endpoint that goes live until its time is over.
func TestIPVSDrains(t *testing.T) {
	r := newRig(t)
	f := r.web(balancer.TCP, 2)
	r.set(f)
	c, _ := r.dial(balancer.TCP)
	until := time.Now().Add(wait.Scaled(2 * time.Second))
	g := r.with(r.web(balancer.TCP, 2, 3), 2, func(b *balancer.Backend) { b.State, b.Weight, b.Until = balancer.Removed, 0, until })
	r.set(g)
	for range 3 {
		if _, name := r.dial(balancer.TCP); name != "s3" {
			t.Errorf("%s gets a new connection, want s3", name)
		}
	}
	t.Log("\n" + r.table())
	if err := alive(c); err != nil {
		t.Errorf("the connection of an endpoint that drains: %v", err)
	}
	wait.For(t, time.Until(until)+10*time.Second, "the destination to go", func() bool { return r.weight(g, 2) < 0 })
	if time.Now().Before(until) {
		t.Error("it went before its time")
	}
	wait.For(t, 10*time.Second, "the connection to end", func() bool { return alive(c) != nil })
	t.Log(alive(c))
}

// TestIPVSMovesUDP has a UDP client that keeps its port move at once when its endpoint goes.
func TestIPVSMovesUDP(t *testing.T) {
	r := newRig(t)
	r.set(r.web(balancer.UDP, 2))
	c, name := r.dial(balancer.UDP)
	t.Log(name)
	r.set(r.web(balancer.UDP, 3))
	moved := time.Now()
	r.follows(c, "s3")
	t.Log("moved after", time.Since(moved))
	r.set()
	r.follows(c, "")
	for range 5 {
		r.follows(c, "")
	}
	out, _ := os.ReadFile("/proc/net/nf_conntrack")
	t.Log(string(out))
	back := time.Now()
	r.set(r.web(balancer.UDP, 4))
	r.follows(c, "s4")
	t.Log("moved after", time.Since(back))
	out, _ = os.ReadFile("/proc/net/nf_conntrack")
	t.Log(string(out))
}
