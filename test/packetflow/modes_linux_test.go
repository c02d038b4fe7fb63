package packetflow

import (
	"log/slog"
	"testing"

	"vipd/balancer"
	"vipd/dataplane"
	"vipd/dataplane/guard"
	"vipd/dataplane/host"
	"vipd/dataplane/iptables"
	"vipd/dataplane/ipvs"
	"vipd/dataplane/nftables"
	"vipd/dataplane/userspace"
)

// modes returns the modes that real packets pass through on every kernel. One of these modes runs
// on a node whose firewall drops by default.
func modes() []mode {
	plain, nft, legacy := host.DefaultOptions(), host.DefaultOptions(), host.DefaultOptions()
	nft.Variant, nft.Mode = "nft", nftables.Needs()
	legacy.Variant, legacy.Mode = "legacy", iptables.Needs()
	return []mode{
		{name: "userspace, redirect", host: plain, open: openRedirect},
		{name: "nftables", host: nft, open: openNFTables(nft)},
		{
			name: "iptables, nft", host: nft, drops: true,
			open: openIPTables(iptables.Options{Variant: "nft", Mark: guard.Mark(nft.MasqueradeBit)}), plan: planIPTables(nft),
		},
		{
			name: "iptables, legacy", host: legacy,
			open: openIPTables(iptables.Options{Variant: "legacy", Mark: guard.Mark(legacy.MasqueradeBit)}), plan: planIPTables(legacy),
		},
	}
}

func ipvsMode() mode {
	o := host.DefaultOptions()
	o.Variant, o.Mode = "nft", ipvs.Needs()
	return mode{name: "ipvs", host: o, open: func(t *testing.T) dataplane.Dataplane {
		t.Helper()
		d, err := ipvs.New(t.Context(), ipvs.Options{Log: slog.New(slog.DiscardHandler), RunDir: o.RunDir})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}}
}

func planIPTables(o host.Options) func([]*balancer.Frontend) string {
	return func(frontends []*balancer.Frontend) string {
		return iptables.Render(frontends, guard.Mark(o.MasqueradeBit))
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

func openNFTables(o host.Options) func(t *testing.T) dataplane.Dataplane {
	return func(t *testing.T) dataplane.Dataplane {
		t.Helper()
		d, err := nftables.New(nftables.Options{Log: slog.New(slog.DiscardHandler), Mark: guard.MarkBits(o.MasqueradeBit)})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
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
