package convert

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
)

// Options holds facts that are missing from the configuration.
type Options struct {
	// VIPs lists the addresses that replace listeners on all addresses, such as "*:80". If no VIP
	// is of the listener's address family, the listener is an error.
	VIPs []netip.Addr
}

// Result is a converted configuration.
type Result struct {
	// TOML is a vipd configuration. The notes are comments at its end.
	TOML string
	// Services is the number of services in TOML that vipd would serve.
	Services int
	// Disabled is the number of services that are commented out in TOML. The reasons precede each
	// of them.
	Disabled int
	// Groups is the number of VRRP groups in TOML. DisabledGroups is the number of VRRP groups that
	// are commented out.
	Groups, DisabledGroups int
	// Empty is the reason why there are no services. If it is "", the text defines no services.
	Empty string
	// Notes lists the lines that have no exact equivalent.
	Notes []Note
}

// Note is a line that has no exact equivalent.
type Note struct {
	// Line is the line number, starting at 1.
	Line int
	// Text is the line as written in the configuration.
	Text string
	// Nearest describes vipd's behavior, or the nearest setting.
	Nearest string
}

// Error is the reason why a configuration can't be converted.
type Error struct {
	File string
	Line int
	Text string
}

// Error returns the file, the line and the reason.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text) }

// maxText is the maximum size of a configuration in bytes. Real configurations are far smaller.
const maxText = 16 << 20

// readers returns the reader for each format.
func readers() map[string]func(*draft) error {
	return map[string]func(*draft) error{
		"keepalived": readKeepalived, "haproxy": readHAProxy, "ipvsadm": readIPVSADM, "gobetween": readGobetween, "nginx": readNginx,
		"ldirectord": readLdirectord, "kubernetes": readKubernetes,
	}
}

// Formats lists the formats that Convert reads.
func Formats() []string { return slices.Sorted(maps.Keys(readers())) }

// Convert converts the text of a file in one of Formats. The error is an *Error if it is about a
// line.
func Convert(format, file string, text []byte, o Options) (*Result, error) {
	read, known := readers()[format]
	switch {
	case !known:
		return nil, fmt.Errorf("there is no format %q; use %s", format, strings.Join(Formats(), ", "))
	case len(text) > maxText:
		return nil, fmt.Errorf("%s has %d bytes, which is too much for a configuration of %s: is it the right file?", file, len(text), format)
	case !utf8.Valid(text):
		valid := strings.ToValidUTF8(string(text), "\xff")
		line := 1 + strings.Count(valid[:strings.IndexByte(valid, 0xff)], "\n")
		return nil, &Error{File: file, Line: line, Text: "is not UTF-8 text; convert its encoding first, for example with iconv"}
	}
	d := newDraft(format, file, strings.TrimPrefix(string(text), "\ufeff"), o)
	if err := read(d); err != nil {
		return nil, err
	}
	d.fitAll()
	d.fitGroups()
	slices.SortStableFunc(d.notes, func(a, b Note) int { return cmp.Compare(a.Line, b.Line) })
	disabled, groups := d.disabled(), d.liveGroups()
	return &Result{
		TOML: d.text(), Services: len(d.services) - disabled, Disabled: disabled, Groups: groups, DisabledGroups: len(d.groups) - groups,
		Empty: d.empty, Notes: d.notes,
	}, nil
}
