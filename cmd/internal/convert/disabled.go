package convert

// disable comments the service out in the output, because it would behave differently from the
// origin. The text has the reason and the fix.
func (d *draft) disable(s *service, line int, format string, args ...any) {
	r := reason{s, d.newNote(line, format, args...)}
	if !d.index.disabled[r] {
		d.index.disabled[r] = true
		s.reasons = append(s.reasons, r.Note)
	}
}

// reason is a reason for commenting a service out.
type reason struct {
	*service
	Note
}

// emptyIncludes is the reason why a text that includes others has no services.
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
