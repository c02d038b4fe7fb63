package schema

import (
	"fmt"
	"slices"
	"testing"

	"vipd/balancer"
)

// TestDecodePendingUnread decodes a pending change that a later version has written. Services that
// this version can't decode must be listed in Unread. A service that only has an unknown field must
// be decoded.
func TestDecodePendingUnread(t *testing.T) {
	p, _ := DecodePending([]byte(`{"services": {
		"a": {"fields": {"vips": ["10.96.0.1"], "ports": [{"port": 80}], "later": true}},
		"b": {"fields": {"vips": ["10.96.0.2"], "ports": [{"port": 80}], "scheduler": "later"}},
		"c": {"fields": "later"}
	}}`), balancer.Origin{}, nil)
	var unread []balancer.Name
	for _, problem := range p.Unread {
		unread = append(unread, problem.Service)
	}
	if want := []balancer.Name{"b", "c"}; !slices.Equal(unread, want) || p.Services["a"] == nil {
		t.Errorf("services in Unread = %v, want %v; decoded services = %v, want a", unread, want, p.Services)
	}
}

// TestPendingCovers checks which nodes the scope of a pending change covers. A scope of several
// parts must cover a node if one of its parts does. A percentage must cover about its share of many
// nodes, and all nodes that a smaller percentage covers.
func TestPendingCovers(t *testing.T) {
	for text, want := range map[string]bool{"n1": true, "n2": false, "n2,n1": true, "zone=a": true, "zone=b, n2": false, "zone=b,zone=a": true, "100%": true, "n2,100%": true} {
		on, err := ParseScope(text)
		if got := (&Pending{On: on}).Covers("n1", "a"); err != nil || got != want {
			t.Errorf("scope %q: Covers = %t, %v; want %t", text, got, err, want)
		}
	}
	if !(&Pending{}).Covers("n1", "") {
		t.Error("change without a scope: Covers = false, want true")
	}
	for _, text := range []string{"", "n1,", "0%", "101%", "x%", "NaN%", "zone=", "a/b"} {
		if on, err := ParseScope(text); err == nil {
			t.Errorf("ParseScope(%q) = %v, want an error", text, on)
		}
	}
	const nodes = 2000
	var before []string
	for _, share := range []int{1, 10, 50, 90, 100} {
		p := &Pending{On: []string{fmt.Sprint(share, "%")}}
		var covered []string
		for n := range nodes {
			if name := fmt.Sprintf("node-%d.example.org", n); p.Covers(name, "") {
				covered = append(covered, name)
			}
		}
		if got := 100 * len(covered) / nodes; got < share-4 || got > share+4 {
			t.Errorf("scope %d%% covers %d%% of the nodes, want about the same percentage", share, got)
		}
		for _, name := range before {
			if !slices.Contains(covered, name) {
				t.Fatalf("scope %d%% does not cover %s, although a smaller percentage covers it", share, name)
			}
		}
		before = covered
	}
}
