package iptables

import (
	"slices"
	"testing"

	"vipd/balancer"
)

// TestRangeRulesLeaveNarrowerPorts computes the rules of ranges. They must not match the ports of
// narrower frontends on the same address and protocol.
func TestRangeRulesLeaveNarrowerPorts(t *testing.T) {
	keyOf := func(text string) balancer.Key {
		k, err := balancer.ParseKey(text)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	ranged, whole := keyOf("10.96.0.1:8000-8009"), keyOf("10.96.0.1:all")
	toRange, toWhole := " -g "+frontChain(ranged), " -g "+frontChain(whole)
	for _, c := range []struct {
		name string
		keys []string
		want []string
	}{
		{"no range", []string{"10.96.0.1:80"}, nil},
		{"range", []string{"10.96.0.1:8000-8009"}, []string{"-d 10.96.0.1/32 -p tcp -m tcp --dport 8000:8009" + toRange}},
		{"other protocol", []string{"10.96.0.1:8000-8009", "10.96.0.1:8005/udp"}, []string{"-d 10.96.0.1/32 -p tcp -m tcp --dport 8000:8009" + toRange}},
		{"single port inside", []string{"10.96.0.1:8001", "10.96.0.1:8000-8009"}, []string{
			"-d 10.96.0.1/32 -p tcp -m tcp --dport 8000" + toRange, "-d 10.96.0.1/32 -p tcp -m tcp --dport 8002:8009" + toRange,
		}},
		{"whole address", []string{"10.96.0.1:all"}, []string{"-d 10.96.0.1/32 -p tcp" + toWhole}},
		{"range inside a whole address", []string{"10.96.0.1:all", "10.96.0.1:8000-8009"}, []string{
			"-d 10.96.0.1/32 -p tcp -m tcp --dport 1:7999" + toWhole, "-d 10.96.0.1/32 -p tcp -m tcp --dport 8010:65535" + toWhole,
			"-d 10.96.0.1/32 -p tcp -m tcp --dport 8000:8009" + toRange,
		}},
	} {
		var keys []balancer.Key
		for _, text := range c.keys {
			keys = append(keys, keyOf(text))
		}
		if got := rangeRules(keys); !slices.Equal(got, c.want) {
			t.Errorf("%s: rules = %q, want %q", c.name, got, c.want)
		}
	}
}
