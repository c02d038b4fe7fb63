package decode

import (
	"encoding"
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Tree is the inverse of Into. It returns the fields of the struct that value points to, except
// fields that equal the same field in defaults. Both arguments must have the same type. In list
// elements, it omits fields that have the value from SetDefaults.
func Tree(value, defaults any) map[string]any {
	e := encoder{decoder{plans: map[reflect.Type][]field{}}}
	return e.table(reflect.ValueOf(value).Elem(), reflect.ValueOf(defaults).Elem())
}

type encoder struct{ decoder }

func (e *encoder) table(v, defaults reflect.Value) map[string]any {
	tree := map[string]any{}
	for _, f := range e.fields(v.Type()) {
		a, b := v.FieldByIndex(f.index), defaults.FieldByIndex(f.index)
		if !reflect.DeepEqual(a.Interface(), b.Interface()) {
			tree[f.name] = e.value(a)
		}
	}
	return tree
}

func (e *encoder) value(v reflect.Value) any {
	if t, ok := v.Interface().(Number); ok {
		if n, ok := t.Number(); ok {
			return n
		}
	}
	switch t := v.Interface().(type) {
	case time.Duration:
		return FormatDuration(t)
	case encoding.TextMarshaler:
		text, err := t.MarshalText()
		if err != nil {
			panic(fmt.Sprintf("decode: %T can't be written as text: %v", t, err))
		}
		return string(text)
	}
	switch v.Kind() {
	case reflect.String:
		return v.String()
	case reflect.Bool:
		return v.Bool()
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return v.Int()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return int64(v.Uint())
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return e.value(v.Elem())
	case reflect.Struct:
		return e.table(v, newWithDefaults(v.Type()).Elem())
	case reflect.Slice:
		if _, ok := v.Interface().(singleAllower); ok && v.Len() == 1 {
			return e.value(v.Index(0))
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i] = e.value(v.Index(i))
		}
		return list
	case reflect.Map:
		table := map[string]any{}
		for entries := v.MapRange(); entries.Next(); {
			table[entries.Key().String()] = e.value(entries.Value())
		}
		return table
	case reflect.Interface:
		return v.Interface()
	}
	panic(fmt.Sprintf("decode: a %s can't be written", v.Type()))
}

// FormatDuration formats d without zero units: 3h, not 3h0m0s.
func FormatDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
