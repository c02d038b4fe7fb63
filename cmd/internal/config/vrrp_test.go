package config_test

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"vipd/cmd/internal/config"
	"vipd/store/tomlfile"
)

// vrrpTable returns a configuration with a valid group, main. It appends more to the group's table.
func vrrpTable(more string) string {
	return "[ownership]\nenabled = true\n[ownership.vrrp.main]\nrouter_id = 51\n" + more
}

// TestVRRPGroupInvalid loads configurations with at most one mistake each. The problem must name
// the line and the remedy.
func TestVRRPGroupInvalid(t *testing.T) {
	for text, want := range map[string]string{
		"[ownership]\nenabled = true":                                        `vipd.toml:2: ownership.enabled: needs a table [ownership.vrrp.NAME], or store.kind = "etcd"`,
		"[ownership]\nenabled = true\n[ownership.vrrp.main]\npriority = 100": "vipd.toml:3: ownership.vrrp.main.router_id: is missing or 0; write the ID of this group, 1 to 255, the same on each of its hosts",
		"[ownership.vrrp.main]\nrouter_id = 256":                             "vipd.toml:2: ownership.vrrp.main.router_id: 256 is out of range; use 1 to 255",
		"[ownership]\nby = \"etcd\"":                                         `vipd.toml:2: ownership.by: "etcd" needs store.kind = "etcd"; without etcd, write by = "vrrp"`,
		"addresses.allowed = [\"10.0.0.0/8\"]\nstore.kind = \"etcd\"\n[ownership.vrrp.main]\nrouter_id = 1": `vipd.toml:3: ownership.vrrp: has no effect, because etcd decides; write by = "vrrp" in [ownership], or remove the table`,
		"addresses.allowed = [\"10.0.0.0/8\"]\nstore.kind = \"etcd\"\nownership.reach_takes = false":        "vipd.toml:3: ownership.reach_takes: has no effect, because etcd decides; it is for VRRP",
		"[ownership]\nby = \"vrrp\"\nweight = 2":                                                            "vipd.toml:3: ownership.weight: applies only if etcd decides the owners; with VRRP, set priority in [ownership.vrrp.NAME]",
		"[ownership]\nby = \"vrrp\"\ndetect = \"1s\"":                                                       "vipd.toml:3: ownership.detect: applies only if etcd decides the owners; with VRRP, set advert_interval in [ownership.vrrp.NAME]",
		"[ownership]\nby = \"vrrp\"\nlisten = [\"10.0.0.1\"]":                                               "vipd.toml:3: ownership.listen: applies only if etcd decides the owners; with VRRP, set source in [ownership.vrrp.NAME]",
		vrrpTable("priority = 255"):                                                                         "vipd.toml:5: ownership.vrrp.main.priority: 255 is for a host that has the VIP as its own address; write 254",
		vrrpTable("priority = 0"):                                                                           "vipd.toml:5: ownership.vrrp.main.priority: 0 is out of range; use 2 to 254",
		vrrpTable("priority = 1"):                                                                           "vipd.toml:5: ownership.vrrp.main.priority: a host that can't serve the VIPs sends 1; write 2 or more",
		vrrpTable("advert_interval = \"50ms\""):                                                             "vipd.toml:5: ownership.vrrp.main.advert_interval: 50ms is out of range; use 100ms to 40.95s",
		vrrpTable("advert_interval = \"41s\""):                                                              "vipd.toml:5: ownership.vrrp.main.advert_interval: 41s is out of range; use 100ms to 40.95s",
		vrrpTable("advert_interval = \"105ms\""):                                                            "vipd.toml:5: ownership.vrrp.main.advert_interval: 105ms is not valid; write a multiple of 10ms",
		vrrpTable("version = 2\nadvert_interval = \"1.5s\""):                                                "vipd.toml:6: ownership.vrrp.main.advert_interval: 1.5s is not valid in version 2; write whole seconds from 1s to 255s",
		vrrpTable("preempt = \"-1s\""):                                                                      `vipd.toml:5: ownership.vrrp.main.preempt: -1s is out of range; use 0s to 24h, or "never"`,
		vrrpTable("preempt = \"always\""):                                                                   `vipd.toml:5: ownership.vrrp.main.preempt: "always" is neither "never" nor a duration, such as "0s" or "30s"`,
		vrrpTable("interface = \"a/b\""):                                                                    `vipd.toml:5: ownership.vrrp.main.interface: "a/b" is not an interface's name: it has 1 to 15 characters, none of them a space, / or :`,
		vrrpTable("password = \"x\""):                                                                       "vipd.toml:5: ownership.vrrp.main.password: is for version 2; version 3 has no authentication. To accept adverts only from certain hosts, list them in peers",
		vrrpTable("version = 2\nadvert_interval = \"1s\"\npassword = \"ninebytes\""):                        "vipd.toml:7: ownership.vrrp.main.password: has 9 bytes; use at most 8",
		vrrpTable("version = 2\nadvert_interval = \"1s\"\npassword = \"secret\""):                           "vipd.toml:7: ownership.vrrp.main.password: is sent in the clear: anyone on the LAN can read it",
		vrrpTable("checksum = \"both\""):                                                                    `vipd.toml:5: ownership.vrrp.main.checksum: "both" is not one of auto, plain, pseudo`,
		vrrpTable("down_adverts = 2"):                                                                       "vipd.toml:5: ownership.vrrp.main.down_adverts: 2 is out of range; use 3 to 10",
		vrrpTable("source = \"10.0.0.1\"\npeers = [\"10.0.0.1\"]"):                                          "vipd.toml:6: ownership.vrrp.main.peers[0]: 10.0.0.1 is this host's own address (see source); list only the other hosts",
		vrrpTable("peers = [\"10.0.0.1\", \"fe80::1\"]"):                                                    "vipd.toml:5: ownership.vrrp.main.peers[1]: fe80::1 and 10.0.0.1 have different address families; write a group for each family",
		vrrpTable("peers = [\"224.0.0.18\"]"):                                                               "vipd.toml:5: ownership.vrrp.main.peers[0]: 224.0.0.18 is a multicast address; leave peers out for multicast",
		vrrpTable("peers = [\"10.0.0.2\", \"10.0.0.2\"]"):                                                   "vipd.toml:5: ownership.vrrp.main.peers[1]: 10.0.0.2 is a duplicate",
		vrrpTable("unicast_ttl = 1"):                                                                        "vipd.toml:5: ownership.vrrp.main.unicast_ttl: has no effect without peers: multicast adverts always need a TTL of 255",
		vrrpTable("version = 2\nadvert_interval = \"0s\""):                                                  "vipd.toml:6: ownership.vrrp.main.advert_interval: 0s is not valid in version 2; write whole seconds from 1s to 255s",
		vrrpTable("[addresses]\nbind = false"):                                                              `vipd.toml:6: addresses.bind: false has no effect on VIPs with hold = "one", because vipd owner adds and removes them; set ownership.enabled = false if another program holds them`,
		vrrpTable("advert_int = 1"):                                                                         `vipd.toml:5: ownership.vrrp.main.advert_int: unknown field; write advert_interval, such as "1s"`,
		vrrpTable("nopreempt = true"):                                                                       `vipd.toml:5: ownership.vrrp.main.nopreempt: unknown field; write preempt = "never", the default`,
		vrrpTable("prioritty = 1"):                                                                          `vipd.toml:5: ownership.vrrp.main.prioritty: unknown field; did you mean "priority"?`,
		vrrpTable("[ownership.vrrp.more]\nrouter_id = 51"):                                                  "vipd.toml:6: ownership.vrrp.more.router_id: 51 is also the ID of ownership.vrrp.main; choose another ID, or set interface if the groups are on different LANs",
		vrrpTable("[ownership.vrrp.more]\nrouter_id = 51\nsource = \"fe80::1\""):                            "",
		vrrpTable("[ownership.vrrp.more]\nrouter_id = 51\ninterface = \"eth1\""):                            "",
		"[ownership.vrrp]\nmain = 1":                                                                        "vipd.toml:2: ownership.vrrp.main: needs a table, not the number 1",
	} {
		if _, got, _ := load(t, text); got != want {
			t.Errorf("%q: problems =\n%s\nwant\n%s", text, got, want)
		}
	}
}

// TestVRRPGroupDefaults loads a group that sets only its ID. All other fields must have their
// defaults.
func TestVRRPGroupDefaults(t *testing.T) {
	c, problems, _ := load(t, vrrpTable(""))
	g := c.Ownership.VRRP["main"]
	got := fmt.Sprint(problems, c.Decider(), g.RouterID, g.Priority, g.AdvertInterval.String(), g.Version, g.Preempt, g.Checksum, g.DownAdverts, g.UnicastTTL, g.Yield, c.Ownership.ReachTakes)
	if want := fmt.Sprint("", config.ByVRRP, 51, 100, "200ms", 3, config.NeverPreempt, config.AutoChecksum, 3, 255, true, true); got != want {
		t.Errorf("group = %s, want %s", got, want)
	}
}

// TestVRRPGroupsOfVIPs assigns VIPs to groups. Each mistake must be reported at the line of the
// table that contains the mistake: a VIP's table or a group's table.
func TestVRRPGroupsOfVIPs(t *testing.T) {
	two := vrrpTable("[ownership.vrrp.second]\nrouter_id = 52\n")
	one := func(addr, more string) string { return fmt.Sprintf("[vips.%q]\nhold = \"one\"\n%s\n", addr, more) }
	for _, c := range []struct{ text, groups, problems string }{
		{vrrpTable("") + one("10.0.0.9", "") + one("10.0.0.8", ""), "main 10.0.0.8,10.0.0.9 10.0.0.8,10.0.0.9", ""},
		{vrrpTable("advertise = [\"10.0.0.9\"]\n") + one("10.0.0.9", "") + one("10.0.0.8", ""), "main 10.0.0.8,10.0.0.9 10.0.0.9", ""},
		{vrrpTable("") + one("10.0.0.8", "") + one("fd00::8", ""), "main 10.0.0.8,fd00::8 10.0.0.8", ""},
		{two + one("10.0.0.8", "group = \"second\"") + one("10.0.0.9", "group = \"main\""), "main 10.0.0.9 10.0.0.9; second 10.0.0.8 10.0.0.8", ""},
		{vrrpTable(""), "", `vipd.toml:3: ownership.vrrp.main: has no VIP; write [vips."ADDRESS"] with hold = "one" and group = "main", or remove the table`},
		{two + one("10.0.0.8", ""), "", `vipd.toml:7: vips."10.0.0.8".group: is missing; write this VIP's group: main, second`},
		{vrrpTable("") + one("10.0.0.8", "group = \"mian\""), "", `vipd.toml:7: vips."10.0.0.8".group: there is no table [ownership.vrrp.mian]; did you mean "main"?`},
		{vrrpTable("") + one("10.0.0.8", "prefer = [\"a\"]\npreempt = \"1m\""), "main 10.0.0.8 10.0.0.8", `vipd.toml:7: vips."10.0.0.8".prefer: has no effect with VRRP; set priority in [ownership.vrrp.main]`},
		{vrrpTable("advertise = [\"10.0.0.7\"]\n") + one("10.0.0.8", ""), "", "vipd.toml:3: ownership.vrrp.main.advertise[0]: 10.0.0.7 is not a VIP of the group; its VIPs are 10.0.0.8"},
		{vrrpTable("advertise = [\"10.0.0.8\", \"fd00::8\"]\n") + one("10.0.0.8", "") + one("fd00::8", ""), "", "vipd.toml:3: ownership.vrrp.main.advertise[1]: fd00::8 and 10.0.0.8 have different address families; VIPs of the other family move with the group without being listed"},
		{vrrpTable("version = 2\nadvert_interval = \"1s\"\n") + one("fd00::8", ""), "", "vipd.toml:3: ownership.vrrp.main.version: 2 is for IPv4; write version = 3 for IPv6 VIPs"},
		{vrrpTable("peers = [\"10.0.0.2\"]\n") + one("fd00::8", ""), "", "vipd.toml:3: ownership.vrrp.main.peers[0]: 10.0.0.2 and the VIP fd00::8 have different address families"},
		{vrrpTable("peers = [\"10.0.0.2\", \"10.0.0.8\"]\n") + one("10.0.0.8", ""), "", "vipd.toml:3: ownership.vrrp.main.peers[1]: 10.0.0.8 is a VIP of the group; list the other hosts' own addresses"},
		{vrrpTable("source = \"10.0.0.8\"\n") + one("10.0.0.8", ""), "", "vipd.toml:3: ownership.vrrp.main.source: 10.0.0.8 is a VIP of the group; write an address that this host itself has"},
		{vrrpTable("checksum = \"plain\"\n") + one("fd00::8", ""), "main fd00::8 fd00::8", "vipd.toml:3: ownership.vrrp.main.checksum: has no effect with IPv6, which has only one kind of checksum"},
		{vrrpTable("source = \"10.0.0.2\"\n") + one("fd00::8", ""), "", "vipd.toml:3: ownership.vrrp.main.source: 10.0.0.2 and the VIP fd00::8 have different address families"},
	} {
		groups, problems := vrrpGroups(t, c.text)
		if groups != c.groups || !strings.HasPrefix(problems, c.problems) || c.problems == "" && problems != "" {
			t.Errorf("%s\ngroups = %q, problems = %s\nwant %q, problems = %s", c.text, groups, problems, c.groups, c.problems)
		}
	}
	many := vrrpTable("")
	for i := range 256 {
		many += one(fmt.Sprintf("10.0.%d.1", i), "")
	}
	if _, problems := vrrpGroups(t, many); !strings.Contains(problems, "advertise: has 256 VIPs, but an advert can list only 255") {
		t.Errorf("256 VIPs: problems = %s, want a problem that names the limit of 255", problems)
	}
}

// vrrpGroups loads a configuration with VIPs. It returns "NAME VIPS ADVERTISED" for each group, and
// the problems.
func vrrpGroups(t *testing.T, text string) (groups, problems string) {
	t.Helper()
	c, bad, dir := load(t, text)
	if bad != "" {
		t.Fatalf("%s\nfile problems = %s, want none", text, bad)
	}
	read := tomlfile.Load(filepath.Join(dir, "vipd.toml"))
	all, found := c.VRRPGroups(read.Snapshot.VIPs)
	var lines []string
	for _, g := range all {
		lines = append(lines, fmt.Sprintf("%s %s %s", g.Name, joined(g.VIPs), joined(g.Advertise)))
	}
	for _, p := range found {
		problems += strings.ReplaceAll(p.String(), dir+"/", "") + "\n"
	}
	return strings.Join(lines, "; "), problems
}

func joined(addrs []netip.Addr) string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return strings.Join(all, ",")
}
