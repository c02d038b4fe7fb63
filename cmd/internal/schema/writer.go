package main

import (
	"encoding"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"time"

	"vipd/balancer"
	"vipd/balancer/decode"
)

// node is a part of the schema.
type node = map[string]any

// writer creates schema parts for the types that package decode reads.
type writer struct{ about descriptions }

// duration matches the durations that time.ParseDuration accepts, except signed durations.
const duration = `^([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+$`

// table returns a struct's schema: an object with only the struct's fields. section is the section
// that describes the fields.
func (w *writer) table(t reflect.Type, section string) node {
	properties := node{}
	w.addFields(properties, t, section)
	return node{"type": "object", "properties": properties, "additionalProperties": false}
}

func (w *writer) addFields(properties node, t reflect.Type, section string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name, tagged := f.Tag.Lookup("toml")
		if f.Anonymous && !tagged && f.Type.Kind() == reflect.Struct {
			w.addFields(properties, f.Type, section)
			continue
		}
		if name, _, _ = strings.Cut(name, ","); name != "" && name != "-" {
			properties[name] = w.described(w.value(f.Type, f.Tag.Get("range"), decode.Join(section, name)), section, name)
		}
	}
}

// described adds a field's description to n, if there is one.
func (w *writer) described(n node, section, name string) node {
	if text := w.about.of(section, name); text != "" {
		n["description"] = text
	}
	return n
}

// value returns a type's schema. allowed is its range tag, or "". As in package decode, special
// types such as time.Duration take precedence over the type's kind.
func (w *writer) value(t reflect.Type, allowed, section string) node {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return node{"type": "string", "pattern": duration}
	case t == reflect.TypeFor[balancer.PortRange]():
		n := integer(t, allowed)
		n["type"], n["pattern"] = []string{"integer", "string"}, "^(all|[0-9]+-[0-9]+)$"
		return n
	case t == reflect.TypeFor[netip.Addr](), t == reflect.TypeFor[netip.Prefix](), reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return node{"type": "string"}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return w.value(t.Elem(), allowed, section)
	case reflect.Slice:
		return node{"type": "array", "items": w.value(t.Elem(), allowed, section)}
	case reflect.Map:
		if t.Elem().Kind() == reflect.Interface {
			return node{"type": "object"}
		}
		return node{"type": "object", "additionalProperties": w.value(t.Elem(), allowed, section)}
	case reflect.Struct:
		return w.table(t, section)
	case reflect.Bool:
		return node{"type": "boolean"}
	case reflect.String:
		if choice, limited := reflect.Zero(t).Interface().(decode.Values); limited {
			return node{"type": "string", "enum": choice.Values()}
		}
		return node{"type": "string"}
	}
	return integer(t, allowed)
}

// integer returns an integer type's schema. The limits come from the type, and from the range tag
// allowed.
func integer(t reflect.Type, allowed string) node {
	n := node{"type": "integer"}
	switch t.Kind() {
	case reflect.Uint16:
		n["minimum"], n["maximum"] = 0, 1<<16-1
	case reflect.Uint8:
		n["minimum"], n["maximum"] = 0, 1<<8-1
	case reflect.Uint, reflect.Uint32, reflect.Uint64:
		n["minimum"] = 0
	}
	low, high, _ := strings.Cut(allowed, ",")
	if value, err := strconv.Atoi(low); err == nil {
		n["minimum"] = value
	}
	if value, err := strconv.Atoi(high); err == nil {
		n["maximum"] = value
	}
	return n
}
