package convert

import (
	"slices"
)

// service is a service in a draft. Each part has the line of its source.
type service struct {
	name                   string
	line                   int
	vips, ports, endpoints []listElement
	settings               []setting
	// health are the fields of the health table.
	health []setting
	// clients has the addresses that may connect; nil means all.
	clients netset
	// reasons has the reasons why the service is commented out. If empty, the service is enabled.
	reasons []Note
}

// listElement is an element of a list.
type listElement struct {
	value any
	line  int
	// port is the port of an endpoint; 0 means the service's.
	port uint16
}

func (e *listElement) fields() map[string]any { return e.value.(map[string]any) }

// setting is a field with its value.
type setting struct {
	name  string
	value any
	// line is the line of the origin that sets the field. If line is 0, no line sets it, and why
	// describes the source of the value.
	line int
	why  string
}

// set sets a field, and replaces an earlier value.
func (s *service) set(line int, name string, value any) {
	s.settings = put(s.settings, setting{name: name, value: value, line: line})
}

// check sets a field of the health table, and replaces an earlier value.
func (s *service) check(line int, name string, value any) {
	s.health = put(s.health, setting{name: name, value: value, line: line})
}

func put(all []setting, one setting) []setting {
	all = slices.DeleteFunc(all, func(s setting) bool { return s.name == one.name })
	return append(all, one)
}

// originDefault is the comment of a field with the default value of the origin.
const originDefault = "the default of the origin"

// defaulted sets a field without a value to the origin's default.
func defaulted(all []setting, name string, value any) []setting {
	if find(all, name) != nil {
		return all
	}
	return append(all, setting{name: name, value: value, why: originDefault})
}

// find returns the setting with a name, or nil.
func find(all []setting, name string) *setting {
	if at := slices.IndexFunc(all, func(s setting) bool { return s.name == name }); at >= 0 {
		return &all[at]
	}
	return nil
}

// endpoint adds an endpoint, and omits fields that have their default value.
func (s *service) endpoint(line int, address string, port uint16) map[string]any {
	fields := map[string]any{"address": address}
	s.endpoints = append(s.endpoints, listElement{value: fields, port: port, line: line})
	return fields
}
