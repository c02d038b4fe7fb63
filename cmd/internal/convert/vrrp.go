package convert

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"vipd/balancer"
	"vipd/balancer/snap"
	"vipd/cmd/internal/config"
	"vipd/cmd/internal/tomltext"
	"vipd/store/tomlfile"
)

// vrrpGroup is a VRRP group in a draft, with its VIPs.
type vrrpGroup struct {
	name     string
	line     int
	settings []setting
	vips     []listElement
	// reasons lists the reasons why the group is disabled. If empty, the group is enabled.
	reasons []Note
}

func (g *vrrpGroup) set(line int, name string, value any) {
	g.settings = put(g.settings, setting{name: name, value: value, line: line})
}

// newGroup adds a group. Its name is derived from word.
func (d *draft) newGroup(line int, word string) *vrrpGroup {
	g := &vrrpGroup{name: d.freeName(word), line: line}
	d.groups = append(d.groups, g)
	return g
}

func (d *draft) liveGroups() (n int) {
	for _, g := range d.groups {
		if len(g.reasons) == 0 {
			n++
		}
	}
	return n
}

// fitGroups disables the groups that vipd would refuse. If no group remains, another program still
// has to own the VIPs, so vipd must not add them.
func (d *draft) fitGroups() {
	for _, g := range d.groups {
		if text := d.refusedGroup(g); text != "" {
			g.reasons = append(g.reasons, d.newNote(g.line, "%s", text))
		}
	}
	switch {
	case len(d.groups) == 0:
	case d.liveGroups() == 0:
		d.unbound = d.groups[0].line
	default:
		d.disableUnowned()
	}
}

// disableUnowned disables the services on VIPs of disabled groups. Otherwise vipd would add these
// VIPs on every host.
func (d *draft) disableUnowned() {
	unowned := map[any]*vrrpGroup{}
	for _, g := range d.groups {
		for _, v := range g.vips {
			if len(g.reasons) > 0 {
				unowned[v.value] = g
			}
		}
	}
	for _, s := range d.services {
		for _, v := range s.vips {
			if g := unowned[v.value]; g != nil {
				d.disable(s, g.line, "each host would add %s, because its VRRP group is commented out: %s", v.value, g.reasons[0].Nearest)
			}
		}
	}
}

// refusedGroup returns the reason why vipd would refuse a group in addition to the earlier groups.
// It returns "" if vipd accepts the group.
func (d *draft) refusedGroup(g *vrrpGroup) string {
	w := &writer{draft: d}
	w.WriteString("[ownership]\nenabled = true\n")
	var vips snap.Map[netip.Addr, *balancer.VIP]
	for _, one := range d.groups {
		if one != g && (one.line > g.line || len(one.reasons) > 0) {
			continue
		}
		w.groupTable(one)
		for _, v := range one.vips {
			addr, err := netip.ParseAddr(v.value.(string))
			if err != nil {
				return err.Error()
			}
			vips = vips.Set(addr, &balancer.VIP{Addr: addr, VIPPolicy: balancer.VIPPolicy{Hold: balancer.HoldOne, Group: one.name}})
		}
		if one == g {
			break
		}
	}
	doc, problems := tomlfile.Parse("converted", []byte(w.String()))
	if doc == nil {
		return problems[0].Text
	}
	c, found := config.Decode(doc)
	_, more := c.VRRPGroups(vips)
	for _, p := range slices.Concat(problems, found, more) {
		if p.Severity == balancer.SeverityError {
			return strings.TrimPrefix(p.Field, "ownership.vrrp.") + " " + p.Text
		}
	}
	return ""
}

// ownership writes the groups and their VIPs. Each line of a disabled group begins with "#".
func (w *writer) ownership() {
	if len(w.groups) == 0 {
		return
	}
	head := "[ownership]\nenabled = true\n"
	if w.announce != nil {
		head += fmt.Sprintf("announce_every = %s%s\n", tomltext.Value(w.announce.value, ""), w.comment(w.announce.line))
	}
	if w.liveGroups() == 0 {
		head = "#" + strings.ReplaceAll(strings.TrimSuffix(head, "\n"), "\n", "\n#") + "\n"
	}
	w.WriteString("\n" + head)
	for _, g := range w.groups {
		w.printf("\n#%s\n", strings.TrimPrefix(w.comment(g.line), " #"))
		text := &writer{draft: w.draft}
		text.group(g)
		if len(g.reasons) == 0 {
			w.WriteString(text.String())
			continue
		}
		w.WriteString("# Commented out:\n")
		for _, n := range g.reasons {
			w.note(n)
		}
		for line := range strings.Lines(text.String()) {
			w.WriteString("#" + line)
		}
	}
}

func (w *writer) groupTable(g *vrrpGroup) {
	w.printf("[ownership.vrrp.%s]\n", tomltext.Key(g.name))
	for _, one := range g.settings {
		w.setting(one)
	}
}

func (w *writer) group(g *vrrpGroup) {
	w.groupTable(g)
	for _, v := range g.vips {
		w.printf("\n[vips.%s]%s\nhold = \"one\"\ngroup = %s\n", tomltext.Quote(v.value.(string)), w.comment(v.line), tomltext.Quote(g.name))
	}
}
