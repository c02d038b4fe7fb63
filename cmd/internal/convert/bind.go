package convert

import (
	"errors"
	"slices"
)

// servicesAt makes services for the listeners of a service of the origin. Failed are the places that can't be served; if there are no
// others, the service is disabled.
func (d *draft) servicesAt(line int, name string, listeners []listener, failed []error) []*service {
	services := d.spread(line, name, listeners)
	if len(services) == 0 {
		s := d.newService(line, name)
		services = []*service{s}
		if len(failed) == 0 {
			d.disable(s, line, "it has no address and port that vipd could serve")
		}
		for _, err := range failed {
			at, text := placed(line, err)
			d.disable(s, at, "%s", text)
		}
		return services
	}
	for _, err := range failed {
		at, text := placed(line, err)
		d.note(at, "left out: %s", text)
	}
	return services
}

// placed returns the line and the text of an error; line stands in for an error without a line.
func placed(line int, err error) (int, string) {
	var e *Error
	if errors.As(err, &e) {
		return e.Line, e.Text
	}
	return line, err.Error()
}

// bindGroup is the listeners of a service that need the same treatment.
type bindGroup[T comparable] struct {
	traits    T
	line      int
	listeners []listener
	failed    []error
}

// groupBy adds listeners to the group with the same traits.
func groupBy[T comparable](groups []bindGroup[T], traits T, line int, listeners []listener, failed ...error) []bindGroup[T] {
	i := slices.IndexFunc(groups, func(g bindGroup[T]) bool { return g.traits == traits })
	if i < 0 {
		i, groups = len(groups), append(groups, bindGroup[T]{traits: traits, line: line})
	}
	groups[i].listeners = append(groups[i].listeners, listeners...)
	groups[i].failed = append(groups[i].failed, failed...)
	return groups
}
