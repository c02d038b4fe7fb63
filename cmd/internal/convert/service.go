package convert

import (
	"slices"
)

// service is a service in a draft. Each part records its line in the origin.
type service struct {
	name                   string
	line                   int
	vips, ports, endpoints []listElement
	settings               []setting
	// health holds the fields of the health table.
	health []setting
	// clients holds the addresses that may connect. If nil, all clients may connect.
	clients netset
	// reasons lists the reasons why the service is disabled. If empty, the service is enabled.
	reasons []Note
}

// listElement is an element in one of a service's lists.
type listElement struct {
	value any
	line  int
	// port is an endpoint's port. If 0, the endpoint has the service's port.
	port uint16
}

func (e *listElement) fields() map[string]any { return e.value.(map[string]any) }

// setting is a field with its value.
type setting struct {
	name  string
	value any
	// line is the origin's line that sets the field. If it is 0, no line sets the field, and why
	// describes where the value comes from.
	line int
	why  string
}

// set sets a field. It replaces an earlier value.
func (s *service) set(line int, name string, value any) {
	s.settings = put(s.settings, setting{name: name, value: value, line: line})
}

// check sets a field of the health table. It replaces an earlier value.
func (s *service) check(line int, name string, value any) {
	s.health = put(s.health, setting{name: name, value: value, line: line})
}

func put(all []setting, one setting) []setting {
	all = slices.DeleteFunc(all, func(s setting) bool { return s.name == one.name })
	return append(all, one)
}

// originDefault is the comment on a field that has the origin's default value.
const originDefault = "the original program's default"

// defaulted adds a field with the origin's default, unless the field is already set.
func defaulted(all []setting, name string, value any) []setting {
	if find(all, name) != nil {
		return all
	}
	return append(all, setting{name: name, value: value, why: originDefault})
}

// find returns the setting called name, or nil.
func find(all []setting, name string) *setting {
	if at := slices.IndexFunc(all, func(s setting) bool { return s.name == name }); at >= 0 {
		return &all[at]
	}
	return nil
}

// endpoint adds an endpoint and returns its fields. The caller may add fields.
func (s *service) endpoint(line int, address string, port uint16) map[string]any {
	fields := map[string]any{"address": address}
	s.endpoints = append(s.endpoints, listElement{value: fields, port: port, line: line})
	return fields
}
