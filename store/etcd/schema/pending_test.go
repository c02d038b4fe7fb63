package schema

import (
	"fmt"
	"slices"
	"testing"

	"vipd/balancer"
)

// TestDecodePendingUnread decodes a change with services of a later version. The services that
// can't be decoded must be listed, and an unknown field must not.
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
		t.Errorf("unread services = %v, want %v; services = %v", unread, want, p.Services)
	}
}

// TestPendingCovers checks the scope of a change, which is the union of its parts. A larger
// percentage must include the nodes of a smaller percentage, and each must select about its share
// of many names.
func TestPendingCovers(t *testing.T) {
	for text, want := range map[string]bool{"n1": true, "n2": false, "n2,n1": true, "zone=a": true, "zone=b, n2": false, "zone=b,zone=a": true, "100%": true, "n2,100%": true} {
		on, err := ParseScope(text)
		if got := (&Pending{On: on}).Covers("n1", "a"); err != nil || got != want {
			t.Errorf("%q: covers = %t, %v; want %t", text, got, err, want)
		}
	}
	if !(&Pending{}).Covers("n1", "") {
		t.Error("a change without a scope excludes some nodes, want all included")
	}
	for _, text := range []string{"", "n1,", "0%", "101%", "x%", "NaN%", "zone=", "a/b"} {
		if on, err := ParseScope(text); err == nil {
			t.Errorf("%q: scope = %v, want an error", text, on)
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
			t.Errorf("share of nodes of %d%% = %d%%, want about the same", share, got)
		}
		for _, name := range before {
			if !slices.Contains(covered, name) {
				t.Fatalf("%d%% excludes %s, want it because a smaller share includes it", share, name)
			}
		}
		before = covered
	}
}
