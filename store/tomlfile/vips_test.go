package tomlfile_test

import (
	"net/netip"
	"strings"
	"testing"

	"vipd/balancer"
	"vipd/store"
)

// TestVIPs follows the settings of VIPs in the main file and in the directory's files. A mistake
// must be reported with its line, and the last valid settings must stay in use. If two files have
// settings for the same VIP, the first file's settings must be used.
func TestVIPs(t *testing.T) {
	w := newWorld(t, map[string]string{
		"vipd.toml":         "store.path = \"services.d\"\n[vips.\"10.96.0.1\"]\nhold = \"one\"\n",
		"services.d/a.toml": service("a", 1) + "[vips.\"fd00::1\"]\nwithdraw = \"no_endpoint\"\n",
	})
	w.follow()
	a, b := netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")
	first := w.until("both", func(s store.Snapshot) bool { return s.VIPs.Len() == 2 && len(s.Problems) == 0 })
	if v := first.VIPs.At(a); v.Hold != balancer.HoldOne || v.Origin.At("hold").Line != 3 || v.Origin.At("group").Line != 2 {
		t.Errorf("VIP in the main file = %+v, want hold one, with the lines of its fields", v)
	}
	if v := first.VIPs.At(b); v.Withdraw != balancer.WithdrawNoEndpoint || v.Origin.File != w.path("services.d/a.toml") {
		t.Errorf("VIP in the folder = %+v, want withdraw no_endpoint from services.d/a.toml", v)
	}

	w.write("services.d/b.toml", "[vips.\"fd00::1\"]\n\n[vips.\"10.96.0.2\"]\nprefer = [\"gw1\"]\nhold = \"one\"\n[vips.web]\n[vips]\n\"10.96.0.3\" = 1\n")
	broken := w.until("problems", func(s store.Snapshot) bool { return s.VIPs.Len() == 3 && len(s.Problems) > 0 })
	var got []string
	for _, p := range broken.Problems {
		got = append(got, strings.ReplaceAll(p.String(), w.dir, "DIR"))
	}
	want := []string{
		`DIR/services.d/b.toml:1: vips."fd00::1": is also defined at DIR/services.d/a.toml:4, which is used; rename or remove one of the two`,
		`DIR/services.d/b.toml:6: vips.web: "web" is not an IP address, such as 192.168.1.11 or fd00::11`,
		`DIR/services.d/b.toml:8: vips."10.96.0.3": must be a table: write [vips."10.96.0.3"]`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("problems =\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if broken.VIPs.At(a) != first.VIPs.At(a) || broken.VIPs.At(b) != first.VIPs.At(b) {
		t.Error("unchanged settings got new pointers")
	}

	w.write("services.d/b.toml", "[vips.\"10.96.0.2\"]\nhold = \"two\"\n")
	after := w.until("an error", func(s store.Snapshot) bool { return len(s.Problems) == 1 })
	if p := after.Problems[0]; p.Field != `vips."10.96.0.2".hold` || p.Origin.Line != 2 {
		t.Errorf("problem = %s, want one about the field hold at line 2", p)
	}
	if v := after.VIPs.At(netip.MustParseAddr("10.96.0.2")); v == nil || v.Hold != balancer.HoldOne {
		t.Errorf("after an error: settings of 10.96.0.2 = %+v, want the last valid hold, one", v)
	}
	w.write("services.d/b.toml", service("b", 1))
	w.write("vipd.toml", "store.path = \"services.d\"\n")
	w.until("they are gone", func(s store.Snapshot) bool { return s.VIPs.Len() == 1 && len(s.Problems) == 0 })
}
