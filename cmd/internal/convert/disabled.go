package convert

import "slices"

// disable comments the service out in the output, because it would not do what the origin does. The text says why, and what to do.
func (d *draft) disable(s *service, line int, format string, args ...any) {
	if n := d.newNote(line, format, args...); !slices.Contains(s.reasons, n) {
		s.reasons = append(s.reasons, n)
	}
}

// disabled counts the services that are commented out.
func (d *draft) disabled() int {
	n := 0
	for _, s := range d.services {
		if len(s.reasons) > 0 {
			n++
		}
	}
	return n
}
