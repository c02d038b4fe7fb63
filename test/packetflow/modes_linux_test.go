package packetflow

import (
	"log/slog"
	"testing"

	"vipd/dataplane"
	"vipd/dataplane/host"
	"vipd/dataplane/iptables"
	"vipd/dataplane/userspace"
)

// modes are what real packets meet.
func modes() []mode {
	guard, nft, legacy := host.DefaultOptions(), host.DefaultOptions(), host.DefaultOptions()
	nft.Backend, nft.Mode = "nft", host.Mode{Forward: true, Marked: true}
	legacy.Backend, legacy.Mode = "legacy", host.Mode{Forward: true, Marked: true}
	return []mode{
		{"userspace, redirect", guard, openRedirect},
		{"iptables, nft", nft, openIPTables(iptables.Options{Backend: "nft", Mark: host.Mark(nft)})},
		{"iptables, legacy", legacy, openIPTables(iptables.Options{Backend: "legacy", Mark: host.Mark(legacy)})},
	}
}

func openRedirect(t *testing.T) dataplane.Dataplane {
	t.Helper()
	d, err := userspace.New(userspace.Options{Log: slog.New(slog.DiscardHandler), Intercept: userspace.Redirect})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func openIPTables(o iptables.Options) func(t *testing.T) dataplane.Dataplane {
	return func(t *testing.T) dataplane.Dataplane {
		t.Helper()
		d, err := iptables.New(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
}
