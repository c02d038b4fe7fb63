package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
	"vipd/balancer/snap"
	"vipd/cmd/internal/wording"
)

// OwnerBy is the protocol that the hosts use to choose the owner of a VIP with hold = "one".
type OwnerBy string

// These are the protocols. The zero value selects a protocol by the kind of store (see
// [Config.Decider]).
const (
	ByEtcd OwnerBy = "etcd"
	ByVRRP OwnerBy = "vrrp"
)

// Values lists the possible values.
func (OwnerBy) Values() []string { return []string{string(ByEtcd), string(ByVRRP)} }

// Decider returns the protocol that chooses owners. If none is configured, it is etcd if services
// are in etcd, and otherwise VRRP.
func (c *Config) Decider() OwnerBy {
	switch {
	case c.Ownership.By != "":
		return c.Ownership.By
	case c.Store.Kind == EtcdStore:
		return ByEtcd
	}
	return ByVRRP
}

// VRRP is a group of VIPs that a single VRRP router (RFC 9568) owns at a time: the table
// [ownership.vrrp.NAME].
type VRRP struct {
	// Origin is where the table is in the configuration.
	Origin balancer.Origin `toml:"-"`
	// RouterID is the virtual router ID, 1 to 255. All of the group's hosts must have the same ID,
	// and other routers on the LAN must have different IDs.
	RouterID int `toml:"router_id"`
	// Priority is this host's priority, 2 to 254. If the group has no owner, the healthy host with
	// the highest priority becomes the owner.
	Priority int `toml:"priority"`
	// AdvertInterval is the interval between adverts. It must be a multiple of 10 ms, or whole
	// seconds in version 2.
	AdvertInterval time.Duration `toml:"advert_interval"`
	// Version is the VRRP version: 3, or 2 for IPv4 only.
	Version int `toml:"version" range:"2,3"`
	// Preempt is how long this host must be healthy before it takes over the group from a host with
	// a lower priority.
	Preempt VRRPPreempt `toml:"preempt"`
	// Interface is the device for sending and receiving adverts. If empty, it is the device whose
	// network contains the first VIP.
	Interface string `toml:"interface"`
	// Peers lists the hosts that receive adverts by unicast. Adverts from other hosts are dropped.
	// If empty, adverts use multicast.
	Peers []netip.Addr `toml:"peers"`
	// Source is the source address of adverts. The zero value selects the first address of the
	// interface.
	Source netip.Addr `toml:"source"`
	// Password authenticates version 2 adverts. It has at most 8 bytes and is sent unencrypted.
	Password string `toml:"password"`
	// Checksum is the kind of checksum in version 3 adverts over IPv4.
	Checksum VRRPChecksum `toml:"checksum"`
	// DownAdverts is the number of adverts that a backup must miss before it takes over the group.
	DownAdverts int `toml:"down_adverts" range:"3,10"`
	// Advertise lists the VIPs to include in adverts. If empty, adverts contain all VIPs of the
	// first VIP's address family.
	Advertise []netip.Addr `toml:"advertise"`
	// UnicastTTL is the minimum TTL of adverts from peers.
	UnicastTTL int `toml:"unicast_ttl" range:"1,255"`
	// Yield makes this host give up the group if another owner ignores this host's adverts.
	Yield bool `toml:"yield"`
}

// SetDefaults sets all fields to the defaults that an empty table results in.
func (g *VRRP) SetDefaults() {
	*g = VRRP{
		Priority: 100, AdvertInterval: 200 * time.Millisecond, Version: 3, Preempt: NeverPreempt,
		Checksum: AutoChecksum, DownAdverts: 3, UnicastTTL: 255, Yield: true,
	}
}

// VRRPPreempt is a duration of at least 0s, or NeverPreempt.
type VRRPPreempt time.Duration

// NeverPreempt leaves the group to its current owner, even if this host has a higher priority.
const NeverPreempt VRRPPreempt = -1

const maxVRRPPreempt = 24 * time.Hour

// UnmarshalText parses a duration or "never".
func (p *VRRPPreempt) UnmarshalText(text []byte) error {
	if string(text) == "never" {
		*p = NeverPreempt
		return nil
	}
	d, err := time.ParseDuration(string(text))
	if err != nil {
		return fmt.Errorf(`%q is neither "never" nor a duration, such as "0s" or "30s"`, text)
	}
	if d < 0 || d > maxVRRPPreempt {
		return fmt.Errorf(`%s is out of range; use 0s to %s, or "never"`, text, decode.FormatDuration(maxVRRPPreempt))
	}
	*p = VRRPPreempt(d)
	return nil
}

// VRRPChecksum is a kind of checksum in version 3 adverts over IPv4.
type VRRPChecksum string

// These are the kinds of checksums. PlainChecksum covers only the advert, as RFC 9568 requires.
// PseudoChecksum also covers a pseudo-header, as keepalived does by default. AutoChecksum uses the
// same kind as the peer. Until a peer's advert arrives, it uses PseudoChecksum.
const (
	AutoChecksum   VRRPChecksum = "auto"
	PlainChecksum  VRRPChecksum = "plain"
	PseudoChecksum VRRPChecksum = "pseudo"
)

// Values lists the possible values.
func (VRRPChecksum) Values() []string {
	return []string{string(AutoChecksum), string(PlainChecksum), string(PseudoChecksum)}
}

// These are the limits of an advert's fields. The interval has 12 bits in units of 10 ms in version
// 3, and 8 bits in seconds in version 2 (RFC 9568 section 5.2.7, RFC 3768 section 5.3.7). The
// number of addresses has 8 bits.
const (
	intervalStep  = 10 * time.Millisecond
	minInterval   = 100 * time.Millisecond
	maxIntervalV3 = 4095 * intervalStep
	maxIntervalV2 = 255 * time.Second
	maxPassword   = 8
	maxAdvertised = 255
	ownerPriority = 255
	// unwellPriority is the priority of a host that can't serve the VIPs.
	unwellPriority = 1
)

// checkVRRP checks that the settings match the protocol that chooses owners. It then checks each
// VRRP group, and that no two groups have the same router ID.
func (c *Config) checkVRRP(f *findings) {
	o := &c.Ownership
	if c.Decider() == ByEtcd {
		switch {
		case o.By == ByEtcd && c.Store.Kind != EtcdStore:
			f.wrong("ownership.by", `"etcd" needs store.kind = "etcd"; without etcd, write by = "vrrp"`)
		case len(o.VRRP) > 0:
			f.wrong("ownership.vrrp", `has no effect, because etcd decides; write by = "vrrp" in [ownership], or remove the table`)
		case !o.ReachTakes:
			f.add(balancer.SeverityWarning, "ownership.reach_takes", "has no effect, because etcd decides; it is for VRRP")
		}
		return
	}
	if o.Enabled && !c.Addresses.Bind {
		f.add(balancer.SeverityWarning, "addresses.bind", `false has no effect on VIPs with hold = "one", because vipd owner adds and removes them; set ownership.enabled = false if another program holds them`)
	}
	if o.Enabled && len(o.VRRP) == 0 {
		f.wrong("ownership.enabled", `needs a table [ownership.vrrp.NAME], or store.kind = "etcd"`)
	}
	defaults := Default().Ownership
	for _, s := range []struct {
		field, instead string
		set            bool
	}{
		{"weight", "set priority in [ownership.vrrp.NAME]", o.Weight != defaults.Weight},
		{"detect", "set advert_interval in [ownership.vrrp.NAME]", o.Detect != defaults.Detect},
		{"listen", "set source in [ownership.vrrp.NAME]", len(o.Listen) > 0},
	} {
		if s.set && (o.By == ByVRRP || len(o.VRRP) > 0) {
			f.wrong("ownership."+s.field, "applies only if etcd decides the owners; with VRRP, %s", s.instead)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o.VRRP)) {
		g := o.VRRP[name]
		g.check(f, decode.Join("ownership.vrrp", name))
		for _, other := range slices.Sorted(maps.Keys(o.VRRP)) {
			if h := o.VRRP[other]; other < name && h.RouterID == g.RouterID && h.Interface == g.Interface && h.is4() == g.is4() && g.RouterID != 0 {
				f.wrong(decode.Join("ownership.vrrp", name)+".router_id",
					"%d is also the ID of %s; choose another ID, or set interface if the groups are on different LANs", g.RouterID, decode.Join("ownership.vrrp", other))
			}
		}
	}
}

// is4 reports whether the group's adverts use IPv4, as far as its own table shows. If the table
// contains no addresses, it returns true.
func (g *VRRP) is4() bool {
	for _, a := range slices.Concat(g.Advertise, g.Peers, []netip.Addr{g.Source}) {
		if a.IsValid() {
			return a.Is4()
		}
	}
	return true
}

// check checks the group's own settings. at is the path of its table, such as ownership.vrrp.main.
func (g *VRRP) check(f *findings, at string) {
	switch {
	case g.RouterID == 0:
		f.wrong(at+".router_id", "is missing or 0; write the ID of this group, 1 to 255, the same on each of its hosts")
	case g.RouterID < 0 || g.RouterID > 255:
		f.wrong(at+".router_id", "%d is out of range; use 1 to 255", g.RouterID)
	}
	switch {
	case g.Priority == ownerPriority:
		f.wrong(at+".priority", "255 is for a host that has the VIP as its own address; write 254")
	case g.Priority == unwellPriority:
		f.wrong(at+".priority", "a host that can't serve the VIPs sends 1; write 2 or more")
	case g.Priority < 1 || g.Priority > ownerPriority:
		f.wrong(at+".priority", "%d is out of range; use 2 to 254", g.Priority)
	}
	switch d := g.AdvertInterval; {
	case g.Version == 2 && (d%time.Second != 0 || d < time.Second || d > maxIntervalV2):
		f.wrong(at+".advert_interval", "%s is not valid in version 2; write whole seconds from 1s to 255s", decode.FormatDuration(d))
	case g.Version == 3 && (d < minInterval || d > maxIntervalV3):
		f.wrong(at+".advert_interval", "%s is out of range; use 100ms to %s", decode.FormatDuration(d), decode.FormatDuration(maxIntervalV3))
	case d%intervalStep != 0:
		f.wrong(at+".advert_interval", "%s is not valid; write a multiple of 10ms", decode.FormatDuration(d))
	}
	if g.Interface != "" && !isInterface(g.Interface) {
		f.wrong(at+".interface", notInterface, g.Interface)
	}
	g.checkPassword(f, at)
	if g.Checksum != AutoChecksum && g.Version == 2 {
		f.add(balancer.SeverityWarning, at+".checksum", "has no effect in version 2, which has only one kind of checksum")
	}
	g.checkPeers(f, at)
}

func (g *VRRP) checkPassword(f *findings, at string) {
	switch {
	case g.Password == "":
	case g.Version == 3:
		f.wrong(at+".password", "is for version 2; version 3 has no authentication. To accept adverts only from certain hosts, list them in peers")
	case len(g.Password) > maxPassword:
		f.wrong(at+".password", "has %d bytes; use at most %d", len(g.Password), maxPassword)
	default:
		f.add(balancer.SeverityWarning, at+".password", "is sent in the clear: anyone on the LAN can read it")
	}
}

func (g *VRRP) checkPeers(f *findings, at string) {
	for i, peer := range g.Peers {
		path := fmt.Sprintf("%s.peers[%d]", at, i)
		switch {
		case peer == g.Source:
			f.wrong(path, "%s is this host's own address (see source); list only the other hosts", peer)
		case peer.Is4() != g.Peers[0].Is4():
			f.wrong(path, "%s and %s have different address families; write a group for each family", peer, g.Peers[0])
		case peer.IsMulticast():
			f.wrong(path, "%s is a multicast address; leave peers out for multicast", peer)
		case slices.Contains(g.Peers[:i], peer):
			f.wrong(path, "%s is a duplicate", peer)
		}
	}
	if g.UnicastTTL != 255 && len(g.Peers) == 0 {
		f.add(balancer.SeverityWarning, at+".unicast_ttl", "has no effect without peers: multicast adverts always need a TTL of 255")
	}
}

// VRRPGroup is a VRRP group with its VIPs. The VIPs are sorted, and Advertise is never empty.
type VRRPGroup struct {
	Name string
	VRRP
	VIPs []netip.Addr
}

// VRRPGroups assigns the VIPs with hold = "one" to the VRRP groups, and returns the groups sorted
// by name. It omits groups that have no VIPs or contain an error.
func (c *Config) VRRPGroups(vips snap.Map[netip.Addr, *balancer.VIP]) ([]VRRPGroup, []balancer.Problem) {
	return c.vrrpGroups(vips, func(*VRRPGroup) {})
}

// vrrpGroups implements VRRPGroups. Before it checks a group, it calls the function change, which
// may modify the group.
func (c *Config) vrrpGroups(vips snap.Map[netip.Addr, *balancer.VIP], change func(*VRRPGroup)) ([]VRRPGroup, []balancer.Problem) {
	if !c.Ownership.Enabled || c.Decider() != ByVRRP {
		return nil, nil
	}
	names := slices.Sorted(maps.Keys(c.Ownership.VRRP))
	if len(names) == 0 { // checkVRRP reports missing groups
		return nil, nil
	}
	groups := map[string][]netip.Addr{}
	var problems findings
	for addr, v := range vips.All() {
		if v.Hold != balancer.HoldOne {
			continue
		}
		name, text := groupOf(v, names)
		if text != "" {
			problems.addAt(v.Origin.At("group"), balancer.SeverityError, fmt.Sprintf("vips.%q.group", addr), "%s", text)
			continue
		}
		for _, s := range []struct {
			field, instead string
			set            bool
		}{{"prefer", "priority", len(v.Prefer) > 0}, {"preempt", "preempt", v.Preempt != 0}} {
			if s.set {
				problems.addAt(v.Origin.At(s.field), balancer.SeverityError, fmt.Sprintf("vips.%q.%s", addr, s.field),
					"has no effect with VRRP; set %s in [ownership.vrrp.%s]", s.instead, name)
			}
		}
		groups[name] = append(groups[name], addr)
	}
	var all []VRRPGroup
	for _, name := range names {
		g := VRRPGroup{name, c.Ownership.VRRP[name], groups[name]}
		change(&g)
		field, text := g.complete()
		if text != "" {
			problems.addAt(g.Origin, balancer.SeverityError, decode.Join("ownership.vrrp", name)+field, "%s", text)
			continue
		}
		if g.Checksum != AutoChecksum && g.Version == 3 && !g.Advertise[0].Is4() {
			problems.addAt(g.Origin, balancer.SeverityWarning, decode.Join("ownership.vrrp", name)+".checksum",
				"has no effect with IPv6, which has only one kind of checksum")
		}
		all = append(all, g)
	}
	return all, problems
}

// VRRPGroupsOf is like VRRPGroups, but the argument named maps each VIP to its group's name. The
// VIPs may be newer than c, so a group may advertise a removed VIP or have no VIPs. Neither is a
// problem. Warnings are omitted.
func (c *Config) VRRPGroupsOf(named map[netip.Addr]string) ([]VRRPGroup, []balancer.Problem) {
	var vips snap.Map[netip.Addr, *balancer.VIP]
	for a, group := range named {
		vips = vips.Set(a, &balancer.VIP{Addr: a, VIPPolicy: balancer.VIPPolicy{Hold: balancer.HoldOne, Group: group}})
	}
	groups, problems := c.vrrpGroups(vips, func(g *VRRPGroup) {
		removed := func(a netip.Addr) bool { return !slices.Contains(g.VIPs, a) }
		g.Advertise = slices.DeleteFunc(slices.Clone(g.Advertise), removed)
	})
	var tables []string
	for name := range c.Ownership.VRRP {
		tables = append(tables, decode.Join("ownership.vrrp", name))
	}
	return groups, slices.DeleteFunc(problems, func(p balancer.Problem) bool {
		return p.Severity != balancer.SeverityError || slices.Contains(tables, p.Field)
	})
}

// groupOf returns the name of a VIP's group, or an error text if the VIP has no group. names lists
// all groups' names.
func groupOf(v *balancer.VIP, names []string) (name, text string) {
	switch {
	case v.Group != "" && slices.Contains(names, v.Group):
		return v.Group, ""
	case v.Group != "":
		return "", fmt.Sprintf("there is no table [ownership.vrrp.%s]%s", v.Group, decode.DidYouMean(v.Group, names))
	case len(names) == 1:
		return names[0], ""
	}
	return "", fmt.Sprintf("is missing; write this VIP's group: %s", strings.Join(names, ", "))
}

// complete sets Advertise if it is empty, and checks the group's addresses. If one is wrong, it
// returns the field and the error text.
func (g *VRRPGroup) complete() (field, text string) {
	if len(g.VIPs) == 0 {
		return "", fmt.Sprintf(`has no VIP; write [vips."ADDRESS"] with hold = "one" and group = %q, or remove the table`, g.Name)
	}
	given := len(g.Advertise) > 0
	if !given {
		is4 := g.VIPs[0].Is4()
		g.Advertise = slices.DeleteFunc(slices.Clone(g.VIPs), func(a netip.Addr) bool { return a.Is4() != is4 })
	}
	is4 := g.Advertise[0].Is4()
	for i, a := range g.Advertise {
		at := fmt.Sprintf(".advertise[%d]", i)
		switch {
		case !slices.Contains(g.VIPs, a):
			return at, fmt.Sprintf("%s is not a VIP of the group; its VIPs are %s", a, wording.Some(addrTexts(g.VIPs), 5))
		case a.Is4() != is4:
			return at, fmt.Sprintf("%s and %s have different address families; VIPs of the other family move with the group without being listed", a, g.Advertise[0])
		}
	}
	if i := slices.IndexFunc(g.Peers, func(a netip.Addr) bool { return slices.Contains(g.VIPs, a) }); i >= 0 {
		return fmt.Sprintf(".peers[%d]", i), fmt.Sprintf("%s is a VIP of the group; list the other hosts' own addresses", g.Peers[i])
	}
	switch {
	case slices.Contains(g.VIPs, g.Source):
		return ".source", fmt.Sprintf("%s is a VIP of the group; write an address that this host itself has", g.Source)
	case len(g.Advertise) > maxAdvertised:
		return ".advertise", fmt.Sprintf("has %d VIPs, but an advert can list only %d: remove some; VIPs that are not listed also move with the group", len(g.Advertise), maxAdvertised)
	case g.Version == 2 && !is4:
		return ".version", "2 is for IPv4; write version = 3 for IPv6 VIPs"
	case len(g.Peers) > 0 && g.Peers[0].Is4() != is4:
		return ".peers[0]", fmt.Sprintf("%s and the VIP %s have different address families", g.Peers[0], g.Advertise[0])
	case g.Source.IsValid() && g.Source.Is4() != is4:
		return ".source", fmt.Sprintf("%s and the VIP %s have different address families", g.Source, g.Advertise[0])
	}
	return "", ""
}

func addrTexts(addrs []netip.Addr) []string {
	all := make([]string, len(addrs))
	for i, a := range addrs {
		all[i] = a.String()
	}
	return all
}
