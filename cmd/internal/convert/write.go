package convert

import (
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/tomltext"
)

// text writes the draft as a configuration of vipd.
func (d *draft) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Converted from %s, a configuration of %s. Behind each setting is the line that it comes from.\n", plain(d.file), d.format)
	if len(d.notes) > 0 {
		b.WriteString("# Lines without an exact equivalent are listed at the end. Read them before you use this file.\n")
	}
	if d.disabled() > 0 {
		b.WriteString("# Services that would not do what the origin does are commented out, with the reasons above them.\n")
	}
	if d.mode != "" {
		fmt.Fprintf(&b, "\nmode = %s # %s\n", tomltext.Quote(d.mode), d.modeWhy)
	}
	if d.unbound > 0 {
		fmt.Fprintf(&b, "\n[addresses]\nbind = false%s\n", d.comment(d.unbound))
	}
	for _, s := range d.services {
		d.writeBlock(&b, s)
	}
	if len(d.notes) > 0 {
		b.WriteString("\n# Lines without an exact equivalent:\n#\n")
	}
	for _, n := range d.notes {
		d.writeNote(&b, n)
	}
	return b.String()
}

func (d *draft) writeNote(b *strings.Builder, n Note) {
	fmt.Fprintf(b, "# %s:%d: %s\n#   %s\n", plain(d.file), n.Line, n.Text, n.Nearest)
}

// writeBlock writes a service and the line that it comes from. Each line of a disabled service begins with "#", without a space.
func (d *draft) writeBlock(b *strings.Builder, s *service) {
	fmt.Fprintf(b, "\n#%s\n", strings.TrimPrefix(d.comment(s.line), " #"))
	if len(s.reasons) == 0 {
		d.writeService(b, s)
		return
	}
	b.WriteString("# Commented out:\n")
	for _, n := range s.reasons {
		d.writeNote(b, n)
	}
	var text strings.Builder
	d.writeService(&text, s)
	for line := range strings.Lines(text.String()) {
		b.WriteString("#" + line)
	}
}

func (d *draft) writeService(b *strings.Builder, s *service) {
	fmt.Fprintf(b, "[services.%s]\n", tomltext.Key(s.name))
	d.writeList(b, s, "vips", s.vips)
	d.writeList(b, s, "ports", s.ports)
	d.writeList(b, s, "endpoints", s.endpoints)
	for _, one := range s.settings {
		d.writeSetting(b, one)
	}
	if len(s.health) == 0 {
		return
	}
	fmt.Fprintf(b, "\n[services.%s.health]\n", tomltext.Key(s.name))
	for _, one := range s.health {
		d.writeSetting(b, one)
	}
}

func (d *draft) writeSetting(b *strings.Builder, one setting) {
	comment := d.comment(one.line)
	if one.why != "" {
		comment = " # " + one.why
	}
	fmt.Fprintf(b, "%s = %s%s\n", tomltext.Key(one.name), tomltext.Value(one.value, ""), comment)
}

// writeList writes a list, an element a line where they come from several lines.
func (d *draft) writeList(b *strings.Builder, s *service, name string, entries []entry) {
	apart := slices.ContainsFunc(entries, func(e entry) bool { return e.line != entries[0].line })
	if !apart {
		comment := ""
		if len(entries) > 0 && entries[0].line != s.line {
			comment = d.comment(entries[0].line)
		}
		fmt.Fprintf(b, "%s = %s%s\n", name, tomltext.Value(values(entries), ""), comment)
		return
	}
	fmt.Fprintf(b, "%s = [\n", name)
	for _, e := range entries {
		fmt.Fprintf(b, "  %s,%s\n", tomltext.Value(e.value, ""), d.comment(e.line))
	}
	b.WriteString("]\n")
}

// comment quotes a line of the origin.
func (d *draft) comment(line int) string {
	if line == 0 {
		return ""
	}
	return fmt.Sprintf(" # line %d: %s", line, d.lineText(line))
}
