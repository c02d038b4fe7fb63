package balancer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer/decode"
)

// tableReader decodes and validates one table, and collects its problems.
type tableReader struct {
	service Name
	where   Locator
	unknown Severity // of problems about unknown fields
	// own holds the fields of the table itself. defaulted holds the fields from [defaults].
	own, defaulted map[string]any
	problems       []Problem
	// broken holds the fields whose values could not be read. Other problems with these fields and
	// with enclosing fields are not reported, because they would only be consequences.
	broken map[string]extent
}

// extent distinguishes a broken field from a field that contains a broken field.
type extent int

const (
	brokenInside extent = iota + 1
	brokenWhole
)

func newTableReader(service Name, where Locator, unknown Severity) *tableReader {
	return &tableReader{service: service, where: where, unknown: unknown}
}

// result returns all problems, sorted by line, and reports whether none of them is an error.
func (r *tableReader) result() ([]Problem, bool) {
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Compare(a.Origin.Line, b.Origin.Line) })
	return r.problems, !slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Severity == SeverityError })
}

// decode decodes tree into target. It ignores unknown fields from [defaults], because CheckDefaults
// reports them once.
func (r *tableReader) decode(target any, tree map[string]any) {
	for _, p := range decode.Into(target, tree) {
		severity := SeverityError
		switch {
		case !p.Unknown:
			r.markBroken(p.Path)
		case r.fromDefaults(p.Path):
			continue
		default:
			severity = cmp.Or(r.unknown, SeverityError)
		}
		added := r.add(severity, p.Path, p.Text)
		added.Unknown, added.Misplaced = p.Unknown, p.Misplaced
	}
}

// fromDefaults reports whether the field at path comes from [defaults].
func (r *tableReader) fromDefaults(path string) bool {
	field, _, _ := strings.Cut(path, ".")
	field, _, _ = strings.Cut(field, "[")
	_, ok := r.defaulted[field]
	return ok
}

func (r *tableReader) origin(path string) Origin {
	if r.where == nil {
		return Origin{}
	}
	return r.where(path)
}

// add adds a problem and returns it. The pointer is valid until the next problem is added.
func (r *tableReader) add(severity Severity, path, text string) *Problem {
	if r.fromDefaults(path) {
		text = "from [defaults]: " + text
	}
	r.problems = append(r.problems, Problem{Severity: severity, Origin: r.origin(path), Service: r.service, Field: path, Text: text})
	return &r.problems[len(r.problems)-1]
}

// errorf reports an error in the field at path, unless path is broken.
func (r *tableReader) errorf(path, format string, args ...any) {
	if !r.isBroken(path) {
		r.add(SeverityError, path, fmt.Sprintf(format, args...))
	}
}

// warnf reports a probable mistake in the field at path, unless path is broken.
func (r *tableReader) warnf(path, format string, args ...any) {
	if !r.isBroken(path) {
		r.add(SeverityWarning, path, fmt.Sprintf(format, args...))
	}
}

// markBroken marks path as broken, and the enclosing paths as containing a broken field.
func (r *tableReader) markBroken(path string) {
	if r.broken == nil {
		r.broken = map[string]extent{}
	}
	r.broken[path] = brokenWhole
	for outer := range enclosing(path) {
		r.broken[outer] = max(r.broken[outer], brokenInside)
	}
}

// isBroken reports whether the field at path, a field inside it, or an enclosing field could not be
// read.
func (r *tableReader) isBroken(path string) bool {
	if r.broken == nil {
		return false
	}
	if r.broken[path] != 0 {
		return true
	}
	for outer := range enclosing(path) {
		if r.broken[outer] == brokenWhole {
			return true
		}
	}
	return false
}

// enclosing yields the paths that contain path, innermost first: a[1] and a for a[1].b.
func enclosing(path string) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for {
			i := strings.LastIndexAny(path, ".[")
			if i < 0 || !yield(path[:i]) {
				return
			}
			path = path[:i]
		}
	}
}

// sets reports whether the table itself sets the field.
func (r *tableReader) sets(field string) bool { return r.own[field] != nil }

// element returns the path of a field in element i of a list, or the path of the element itself if
// field is "".
func element(list string, i int, field string) string {
	path := list + "[" + strconv.Itoa(i) + "]"
	if field != "" {
		path += "." + field
	}
	return path
}

// labelRule describes isLabel, for messages.
const labelRule = `1 to 63 characters of a-z, 0-9 and "-", without "-" at either end`

// isLabel reports whether s is a lower-case DNS label.
func isLabel(s string) bool {
	const maxLength = 63
	if len(s) == 0 || len(s) > maxLength || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
