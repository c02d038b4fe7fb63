package convert

import "slices"

// disable comments the service out in the output, because it would behave differently from the
// origin. The format and its arguments describe the reason and the remedy.
func (d *draft) disable(s *service, line int, format string, args ...any) {
	if reason := d.newNote(line, format, args...); !slices.Contains(s.reasons, reason) {
		s.reasons = append(s.reasons, reason)
	}
}

// emptyIncludes is the reason why a configuration that only includes other files has no services.
const emptyIncludes = "it includes other files, which are not read: convert each of them"

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
