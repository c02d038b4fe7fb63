package convert

import (
	"fmt"
	"slices"
	"strings"

	"vipd/cmd/internal/tomltext"
)

// writer writes a draft as a vipd configuration.
type writer struct {
	*draft
	strings.Builder
}

func (w *writer) printf(format string, args ...any) { fmt.Fprintf(w, format, args...) }

// text returns the draft as a vipd configuration.
func (d *draft) text() string {
	w := &writer{draft: d}
	w.printf("# Converted from %s, a configuration of %s. The comment after each setting gives its line number.\n", plain(d.file), d.format)
	if len(d.notes) > 0 {
		w.WriteString("# Lines without an exact equivalent are listed at the end. Read them before you use this file.\n")
	}
	if d.disabled() > 0 {
		w.WriteString("# Services that would behave differently are commented out, with the reasons above them.\n")
	}
	if d.mode != "" {
		w.printf("\nmode = %s # %s\n", tomltext.Quote(d.mode), d.modeWhy)
	}
	if d.unbound > 0 {
		w.printf("\n[addresses]\nbind = false%s\n", w.comment(d.unbound))
	}
	w.ownership()
	for _, s := range d.services {
		w.block(s)
	}
	if len(d.notes) > 0 {
		w.WriteString("\n# Lines without an exact equivalent:\n#\n")
	}
	for _, n := range d.notes {
		w.note(n)
	}
	return w.String()
}

func (w *writer) note(n Note) {
	w.printf("# %s:%d: %s\n#   %s\n", plain(w.file), n.Line, n.Text, n.Nearest)
}

// block writes a service, and the line that it comes from. Each line of a disabled service begins
// with "#", without a space.
func (w *writer) block(s *service) {
	w.printf("\n#%s\n", strings.TrimPrefix(w.comment(s.line), " #"))
	if len(s.reasons) == 0 {
		w.service(s)
		return
	}
	w.WriteString("# Commented out:\n")
	for _, n := range s.reasons {
		w.note(n)
	}
	text := &writer{draft: w.draft}
	text.service(s)
	for line := range strings.Lines(text.String()) {
		w.WriteString("#" + line)
	}
}

func (w *writer) service(s *service) {
	w.printf("[services.%s]\n", tomltext.Key(s.name))
	w.list(s, "vips", s.vips)
	w.list(s, "ports", s.ports)
	w.list(s, "endpoints", s.endpoints)
	for _, one := range s.settings {
		w.setting(one)
	}
	if len(s.health) == 0 {
		return
	}
	w.printf("\n[services.%s.health]\n", tomltext.Key(s.name))
	for _, one := range s.health {
		w.setting(one)
	}
}

func (w *writer) setting(one setting) {
	comment := w.comment(one.line)
	if one.why != "" {
		comment = " # " + one.why
	}
	w.printf("%s = %s%s\n", tomltext.Key(one.name), tomltext.Value(one.value, ""), comment)
}

// list writes a list. If the elements come from several lines in the origin, it writes each element
// on its own line.
func (w *writer) list(s *service, name string, entries []listElement) {
	apart := slices.ContainsFunc(entries, func(e listElement) bool { return e.line != entries[0].line })
	if !apart {
		comment := ""
		if len(entries) > 0 && entries[0].line != s.line {
			comment = w.comment(entries[0].line)
		}
		w.printf("%s = %s%s\n", name, tomltext.Value(values(entries), ""), comment)
		return
	}
	w.printf("%s = [\n", name)
	for _, e := range entries {
		w.printf("  %s,%s\n", tomltext.Value(e.value, ""), w.comment(e.line))
	}
	w.WriteString("]\n")
}

// comment returns a comment that quotes a line from the origin, or "" for line 0.
func (w *writer) comment(line int) string {
	if line == 0 {
		return ""
	}
	return fmt.Sprintf(" # line %d: %s", line, w.lineText(line))
}
