package balancer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"vipd/balancer/decode"
)

// reading collects what is wrong in one table.
type reading struct {
	service Name
	where   Locator
	unknown Severity // of unknown fields
	// own is what the table itself holds, defaulted what it has from [defaults].
	own, defaulted map[string]any
	problems       []Problem
	// broken holds the fields whose values could not be read: nothing more is said about them, and about what
	// contains them, because it would follow from the first mistake.
	broken map[string]extent
}

// extent says whether a path is broken itself or only something inside.
type extent int

const (
	brokenInside extent = iota + 1
	brokenWhole
)

func newReading(service Name, where Locator, unknown Severity) *reading {
	return &reading{service: service, where: where, unknown: unknown}
}

// result returns all problems by line, and whether there is no error among them.
func (r *reading) result() ([]Problem, bool) {
	slices.SortStableFunc(r.problems, func(a, b Problem) int { return cmp.Compare(a.Origin.Line, b.Origin.Line) })
	return r.problems, !slices.ContainsFunc(r.problems, func(p Problem) bool { return p.Severity == SeverityError })
}

// decode reads tree into target. Unknown fields that come from [defaults] are left to CheckDefaults, instead of being
// told for each service.
func (r *reading) decode(target any, tree map[string]any) {
	for _, p := range decode.Into(target, tree) {
		severity := SeverityError
		switch {
		case !p.Unknown:
			r.breaks(p.Path)
		case r.inherits(p.Path):
			continue
		default:
			severity = cmp.Or(r.unknown, SeverityError)
		}
		r.add(severity, p.Path, p.Text)
		last := &r.problems[len(r.problems)-1]
		last.Unknown, last.Misplaced = p.Unknown, p.Misplaced
	}
}

// inherits reports whether the field at path comes from [defaults].
func (r *reading) inherits(path string) bool {
	field, _, _ := strings.Cut(path, ".")
	field, _, _ = strings.Cut(field, "[")
	_, ok := r.defaulted[field]
	return ok
}

// at asks the locator.
func (r *reading) at(path string) Origin {
	if r.where == nil {
		return Origin{}
	}
	return r.where(path)
}

func (r *reading) add(severity Severity, path, text string) {
	if r.inherits(path) {
		text = "from [defaults]: " + text
	}
	r.problems = append(r.problems, Problem{Severity: severity, Origin: r.at(path), Service: r.service, Field: path, Text: text})
}

// errorf notes what keeps the service from being used, unless path is broken anyway.
func (r *reading) errorf(path, format string, args ...any) {
	if !r.isBroken(path) {
		r.add(SeverityError, path, fmt.Sprintf(format, args...))
	}
}

// warnf notes what is probably not meant, unless path is broken anyway.
func (r *reading) warnf(path, format string, args ...any) {
	if !r.isBroken(path) {
		r.add(SeverityWarning, path, fmt.Sprintf(format, args...))
	}
}

// breaks marks path as broken.
func (r *reading) breaks(path string) {
	if r.broken == nil {
		r.broken = map[string]extent{}
	}
	r.broken[path] = brokenWhole
	for outer := range enclosing(path) {
		r.broken[outer] = max(r.broken[outer], brokenInside)
	}
}

// isBroken reports whether path, something in it, or something around it could not be read.
func (r *reading) isBroken(path string) bool {
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

// enclosing yields the paths of what contains path, from the inside: for a[1].b those are a[1] and a.
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
func (r *reading) sets(field string) bool { return r.own[field] != nil }

// setsInHealth reports whether the health table in use sets the field, the service's own or a default.
func (r *reading) setsInHealth(field string) bool {
	for _, from := range []map[string]any{r.own, r.defaulted} {
		if table, ok := from["health"].(map[string]any); ok {
			return table[field] != nil
		}
	}
	return false
}

// element writes the path of a field of an element; "" as the field is the element itself.
func element(list string, i int, field string) string {
	path := list + "[" + strconv.Itoa(i) + "]"
	if field != "" {
		path += "." + field
	}
	return path
}

// labelRule is what isLabel demands, for messages.
const labelRule = `1 to 63 of a-z, 0-9 and "-", the first and last not "-"`

// isLabel reports whether s is a DNS label in lower case.
func isLabel(s string) bool {
	const longest = 63
	if len(s) == 0 || len(s) > longest || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
