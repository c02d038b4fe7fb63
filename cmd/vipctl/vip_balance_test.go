package main

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"vipd/cmd/internal/cli"
	"vipd/test/etcdkit"
)

// TestDrainWithoutAnother drains the owner of a VIP that no other host can own. The drain must
// succeed, and a message must say that the VIP stays.
func TestDrainWithoutAnother(t *testing.T) {
	f := newFleet(t, etcdkit.Options{})
	put := func(key, text string) {
		t.Helper()
		if _, err := f.cluster.Client().Put(t.Context(), "/vipd/ownership/"+key, text); err != nil {
			t.Fatal(err)
		}
	}
	put("nodes/gw1", `{"boot": "0000000000000001", "weight": 1, "standby": true, "addresses": [{"address": "10.0.0.1", "networks": ["10.0.0.0/8"]}]}`)
	put("sessions/gw1", `{"id": "0000000000000001", "jury": ["gw1"]}`)
	put("vips/10.0.0.100", `{"node": "gw1", "session": "0000000000000001"}`)
	code, stdout, stderr := f.run(t.Context(), "ana", "drain", "--node", "gw1")
	if code != cli.ExitDone || !strings.Contains(stderr, "gw1 still owns 10.0.0.100: no other host can take over now") || strings.Contains(stdout+stderr, "other hosts own its VIPs") ||
		!strings.Contains(stdout+stderr, `it owns no VIPs until "vipctl undrain --node gw1"`) {
		t.Errorf("exit code = %d, want 0 and a message about the VIP:\n%s%s", code, stdout, stderr)
	}
	if _, stdout, stderr = f.run(t.Context(), "ana", "undrain", "--node", "gw1"); !strings.Contains(stdout+stderr, "it may own VIPs again") {
		t.Errorf("undrain: output = %s%s, want a message that standby ended", stdout, stderr)
	}
}

// TestEvenOut balances VIPs. As few VIPs as possible must move, and only to hosts that can own
// them. A VIP that prefers its owner must not move.
func TestEvenOut(t *testing.T) {
	owned := func(ready []string, owners ...string) (all []ownedVIP) {
		for i, owner := range owners {
			all = append(all, ownedVIP{VIP: netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), Owner: owner, Ready: ready})
		}
		return all
	}
	all := []string{"a", "b", "c"}
	prefers := owned(all, "a", "a", "a")
	prefers[0].Prefer = []string{"a"}
	returns := owned(all, "b", "b", "b")
	for i := range returns {
		returns[i].Prefer = []string{"a", "b"}
	}
	group := func(owners ...string) []ownedVIP {
		vips := owned(all, owners...)
		vips[0].Group, vips[1].Group = "g", "g"
		return vips
	}
	half := group("a", "a", "a")
	half[1].Ready = all[:1]
	for _, test := range []struct {
		name    string
		vips    []ownedVIP
		weights map[string]int
		want    []string
	}{
		{"even already", owned(all, "a", "b", "c", "a"), map[string]int{"a": 1, "b": 1, "c": 1}, nil},
		{"one came back", owned(all, "a", "a", "a", "b", "b", "b"), map[string]int{"a": 1, "b": 1, "c": 1}, []string{"10.0.0.1 a>c", "10.0.0.4 b>c"}},
		{"twice the weight", owned(all[:2], "a", "a", "a"), map[string]int{"a": 2, "b": 1}, []string{"10.0.0.1 a>b"}},
		{"a witness gives all away", owned(all[:2], "a", "a"), map[string]int{"a": 0, "b": 1}, []string{"10.0.0.1 a>b", "10.0.0.2 a>b"}},
		{"nobody else can", owned(nil, "a", "a", ""), map[string]int{"a": 1, "b": 1}, nil},
		{"one prefers its owner", prefers, map[string]int{"a": 1, "b": 1, "c": 1}, []string{"10.0.0.2 a>b", "10.0.0.3 a>c"}},
		{"all prefer another", returns, map[string]int{"a": 1, "b": 1, "c": 1}, []string{"10.0.0.1 b>a"}},
		{"a group moves", group("a", "a", "a", "a", "a", "b", "b"), map[string]int{"a": 1, "b": 1, "c": 1}, []string{"10.0.0.3 a>c", "10.0.0.4 a>c"}},
		{"a group in one", group("a", "a", "a"), map[string]int{"a": 1, "b": 1}, []string{"10.0.0.3 a>b"}},
		{"only a group", group("a", "a", "b", "a"), map[string]int{"a": 0, "b": 1}, []string{"10.0.0.4 a>b", "10.0.0.1 a>b", "10.0.0.2 a>b"}},
		{"a group that only its owner can have", half[:2], map[string]int{"a": 0, "b": 1}, nil},
		{"a parted group", group("a", "b", "b"), map[string]int{"a": 1, "b": 1, "c": 1}, []string{"10.0.0.3 b>c"}},
	} {
		var got []string
		for _, m := range balanceMoves(test.vips, test.weights) {
			got = append(got, fmt.Sprintf("%s %s>%s", m.VIP, m.From, m.To))
		}
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: moves = %v, want %v", test.name, got, test.want)
		}
	}
}
