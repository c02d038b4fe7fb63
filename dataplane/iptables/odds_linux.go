package iptables

import (
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/bpf"

	"vipd/balancer"
	"vipd/dataplane"
)

// partOption is the match option in rules that shareCoin and clientCoin create. These rules are
// never sent to the kernel. Its value is the fraction of packets that match.
const partOption = "--part "

// shareCoin is a coin for schedulers that do not depend on the client.
func shareCoin(_ string, share, rest int) string {
	return partOption + strconv.FormatFloat(float64(share)/float64(rest), 'g', -1, 64) + " "
}

// clientCoin returns a coin that decides for one client as bySource's coin would. It runs the BPF
// program that the kernel would run.
func clientCoin(client netip.Addr) coin {
	header := make([]byte, 20)
	copy(header[12:], client.AsSlice())
	if client.Is6() {
		header = make([]byte, 40)
		copy(header[8:], client.AsSlice())
	}
	return func(id string, share, rest int) string {
		taken := 0
		if vm, err := bpf.NewVM(sourceCoin(client.Is4(), id, share, rest)); err == nil {
			taken, _ = vm.Run(header) // a program without divisions can't fail
		}
		return partOption + strconv.Itoa(min(taken, 1)) + " "
	}
}

// odds returns each backend's share of the client's new connections, in the order of the rules.
func odds(f *balancer.Frontend, client netip.Addr) []dataplane.Share {
	by := coin(shareCoin)
	if isSourceHash(f) {
		by = clientCoin(client)
	}
	rules, below := choose(by, f, targetsOf(f))
	o := &walk{chains: map[string][]string{}}
	for _, c := range below {
		o.chains[c.Name] = c.Rules
	}
	o.follow(rules, 1)
	for i := range o.shares {
		o.shares[i].Backend = onPort(o.shares[i].Backend, firstTarget(f))
	}
	return o.shares
}

// walk adds up the shares of the backends to which the rules of a frontend lead.
type walk struct {
	chains map[string][]string
	shares []dataplane.Share
}

// follow adds the shares of the backends to which rules lead. part is the share of connections that
// reach the rules.
func (w *walk) follow(rules []string, part float64) {
	for _, rule := range rules {
		taken := part
		if _, text, ok := strings.Cut(rule, partOption); ok {
			text, _, _ = strings.Cut(text, " ")
			of, _ := strconv.ParseFloat(text, 64) // a coin wrote the number
			taken = part * of
		}
		part -= taken
		if to := backendOf(rule); to.IsValid() && taken > 0 {
			w.shares = append(w.shares, dataplane.Share{Backend: to, Part: taken})
		} else if taken > 0 {
			w.follow(w.chains[targetOf(rule)], taken)
		}
	}
}

// choiceOf describes how f's rules choose a backend.
func choiceOf(f *balancer.Frontend) string {
	switch {
	case f.Scheduler == balancer.DestinationHash:
		return "by a hash of the VIP"
	case f.Scheduler == balancer.RoundRobin:
		return "in turn"
	case isSourceHash(f):
		return "by a hash of the client's address"
	}
	return "at random, by weight"
}
