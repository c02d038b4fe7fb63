package decode

import (
	"encoding"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Problem is a mistake in a tree.
type Problem struct {
	// Path is the path of the field, such as endpoints[2].weight. Names that need quotes in TOML
	// are quoted.
	Path string
	// Unknown reports whether the struct has no such field. All other problems are about values.
	Unknown bool
	// Misplaced reports whether the value may belong to another table, whose heading is missing.
	// The field is then unknown, or its value is an unexpected table or list.
	Misplaced bool
	// Text explains the problem, and lists the possible values.
	Text string
}

// defaulter is implemented by pointers to structs with defaults. Into calls SetDefaults on each
// struct that it creates, in lists and behind nil pointers.
type defaulter interface{ SetDefaults() }

// exampler is implemented by pointers to structs that users often mistake for a plain value.
// Example returns a short valid table.
type exampler interface{ Example() string }

// singleAllower is implemented by list types whose only element may be written without the list.
type singleAllower interface{ AllowsSingle() }

// renamer is implemented by pointers to structs whose fields have other names in other programs.
// OtherNames maps each such name to the replacement.
type renamer interface{ OtherNames() map[string]string }

// Number is implemented by unsigned types that are written as a number or as text. Number returns
// the number, or false if the value is written as text.
type Number interface{ Number() (n int64, ok bool) }

// Values is implemented by string types with a fixed set of values.
type Values interface{ Values() []string }

// Synonyms is implemented by types of [Values] that have other names in other programs. Synonyms
// maps each such name, in lower case and without "_" and "-", to the value.
type Synonyms interface{ Synonyms() map[string]string }

// Into decodes tree into the struct that target points to, and returns all problems in the order of
// the struct's fields. A field that is missing or has a problem keeps its value. A list element
// with a problem keeps its defaults, so the other elements keep their indexes.
func Into(target any, tree map[string]any) []Problem {
	v := reflect.ValueOf(target)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("decode: %T is not a pointer to a struct", target))
	}
	d := decoder{plans: map[reflect.Type][]field{}}
	d.table(v.Elem(), tree)
	return d.problems
}

type decoder struct {
	// plans holds the fields of each struct type. It is built for each call to Into, because this
	// takes only microseconds and a global cache would need a lock.
	plans    map[reflect.Type][]field
	path     []byte // path of the current value; a buffer, so paths cost nothing until a problem occurs
	problems []Problem
}

type field struct {
	name    string
	index   []int
	allowed string // the range tag
}

// fields returns the fields of t in order, including fields of embedded structs.
func (d *decoder) fields(t reflect.Type) []field {
	plan, ok := d.plans[t]
	if !ok {
		plan = appendFields(nil, t, nil)
		d.plans[t] = plan
	}
	return plan
}

func appendFields(plan []field, t reflect.Type, outer []int) []field {
	n, depth := t.NumField(), len(outer)+1
	plan = slices.Grow(plan, n)
	indexes := make([]int, 0, n*depth) // one array for all
	for i := range n {
		f := t.Field(i)
		indexes = append(append(indexes, outer...), i)
		index := indexes[len(indexes)-depth:]
		name, tagged := f.Tag.Lookup("toml")
		if f.Anonymous && !tagged && f.Type.Kind() == reflect.Struct {
			plan = appendFields(plan, f.Type, index)
			continue
		}
		name, _, _ = strings.Cut(name, ",")
		if name != "" && name != "-" {
			plan = append(plan, field{name, index, f.Tag.Get("range")})
		}
	}
	return plan
}

// problem adds a problem with the current value and returns it. The pointer is valid until the next
// problem is added.
func (d *decoder) problem(format string, args ...any) *Problem {
	d.problems = append(d.problems, Problem{Path: string(d.path), Text: fmt.Sprintf(format, args...)})
	return &d.problems[len(d.problems)-1]
}

// wrongType adds a problem because the current value has the wrong type.
func (d *decoder) wrongType(wanted string, raw any) {
	d.problem("needs %s, not %s", wanted, describe(raw)).Misplaced = isComposite(raw)
}

func isComposite(raw any) bool {
	switch raw.(type) {
	case map[string]any, []any, []map[string]any:
		return true
	}
	return false
}

// Join returns the path of the field name in the table at path.
func Join(path, name string) string { return string(AppendName([]byte(path), name)) }

// AppendName is like Join, but appends to the path in a buffer.
func AppendName(path []byte, name string) []byte {
	if len(path) > 0 {
		path = append(path, '.')
	}
	if plain(name) {
		return append(path, name...)
	}
	return strconv.AppendQuote(path, name)
}

// enter appends a field to the path, and returns the previous length for leave.
func (d *decoder) enter(name string) int {
	back := len(d.path)
	d.path = AppendName(d.path, name)
	return back
}

// enterIndex appends an index to the path, and returns the previous length for leave.
func (d *decoder) enterIndex(i int) int {
	back := len(d.path)
	d.path = append(d.path, '[')
	d.path = strconv.AppendInt(d.path, int64(i), 10)
	d.path = append(d.path, ']')
	return back
}

func (d *decoder) leave(back int) { d.path = d.path[:back] }

// plain reports whether name is a TOML key that needs no quotes.
func plain(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

func (d *decoder) table(v reflect.Value, tree map[string]any) {
	plan := d.fields(v.Type())
	found := 0
	for i := range plan {
		f := &plan[i]
		raw, ok := tree[f.name]
		if !ok {
			continue
		}
		found++
		if raw == nil {
			continue
		}
		back := d.enter(f.name)
		d.value(v.FieldByIndex(f.index), raw, f.allowed)
		d.leave(back)
	}
	if found < len(tree) {
		d.unknown(v.Type(), plan, tree)
	}
}

// unknown adds problems for the keys of tree that are not in plan, the fields of t.
func (d *decoder) unknown(t reflect.Type, plan []field, tree map[string]any) {
	names := make([]string, len(plan))
	for i := range plan {
		names[i] = plan[i].name
	}
	for _, key := range slices.Sorted(maps.Keys(tree)) {
		if slices.Contains(names, key) {
			continue
		}
		back := d.enter(key)
		hint := DidYouMean(key, names)
		if topLevel(key) {
			hint = "; as a setting of vipd it belongs at the top of vipd.toml, before the first table"
		}
		if at := d.tableWith(t, plan, key); at != "" {
			hint = "; it is a field of " + at
		}
		if r, ok := reflect.New(t).Interface().(renamer); ok && r.OtherNames()[key] != "" {
			hint = "; " + r.OtherNames()[key]
		}
		p := d.problem("unknown field%s", hint)
		p.Unknown, p.Misplaced = true, true
		d.leave(back)
	}
}

// topLevel reports whether key is a setting at the top of vipd.toml. Below a heading, it would
// belong to the heading's table.
func topLevel(key string) bool {
	return slices.Contains([]string{"mode", "strict_mode", "node", "zone", "clamp_mss", "fast_path", "fast_path_hardware", "state_dir", "run_dir"}, key)
}

// tableWith returns the name of the first field of t that is a table, or a list of tables, and has
// a field named key.
func (d *decoder) tableWith(t reflect.Type, plan []field, key string) string {
	for i := range plan {
		table := t.FieldByIndex(plan[i].index).Type
		for table.Kind() == reflect.Pointer || table.Kind() == reflect.Slice {
			table = table.Elem()
		}
		if table.Kind() == reflect.Struct && slices.ContainsFunc(d.fields(table), func(f field) bool { return f.name == key }) {
			return plan[i].name
		}
	}
	return ""
}

// value decodes raw into v. If v's type has its own format, that format has priority over its
// kind's format.
func (d *decoder) value(v reflect.Value, raw any, allowed string) {
	switch t := v.Addr().Interface().(type) {
	case *time.Duration:
		d.duration(t, raw, allowed)
	case *netip.Addr:
		text(d, t, raw, ParseAddr)
	case *netip.Prefix:
		text(d, t, raw, ParsePrefix)
	case *map[string]string:
		readMap(d, t, raw, "")
	case *map[string]uint16:
		readMap(d, t, raw, allowed)
	case *map[string]any:
		if table, ok := d.asTable(raw); ok {
			*t = table
		}
	case encoding.TextUnmarshaler:
		if _, isText := raw.(string); !isText && v.CanUint() {
			d.valueByKind(v, raw, allowed)
			return
		}
		d.unmarshal(t, raw)
	default:
		d.valueByKind(v, raw, allowed)
	}
}

func (d *decoder) valueByKind(v reflect.Value, raw any, allowed string) {
	switch v.Kind() {
	case reflect.String:
		d.str(v, raw)
	case reflect.Bool:
		d.boolean(v, raw)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		d.signed(v, raw, allowed)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		d.unsigned(v, raw, allowed)
	case reflect.Struct:
		if table, ok := d.asStruct(v.Type(), raw); ok {
			d.table(v, table)
		}
	case reflect.Pointer:
		d.pointer(v, raw, allowed)
	case reflect.Slice:
		d.slice(v, raw, allowed)
	case reflect.Map:
		if table, ok := d.asTable(raw); ok {
			d.tables(v, table)
		}
	default:
		panic(fmt.Sprintf("decode: %s is of type %s, which can't be read", d.path, v.Type()))
	}
}

func (d *decoder) asTable(raw any) (map[string]any, bool) {
	table, ok := raw.(map[string]any)
	if !ok {
		d.wrongType("a table", raw)
	}
	return table, ok
}

// asStruct is like asTable, but its error message includes an example if the struct type provides
// one.
func (d *decoder) asStruct(t reflect.Type, raw any) (map[string]any, bool) {
	table, ok := raw.(map[string]any)
	if ok {
		return table, true
	}
	if f, ok := reflect.New(t).Interface().(exampler); ok {
		d.wrongType("a table, such as "+f.Example(), raw)
		return nil, false
	}
	return d.asTable(raw)
}

// pointer decodes raw into the value that v points to, or into a new value. A table with problems
// is stored, but other values with problems are not.
func (d *decoder) pointer(v reflect.Value, raw any, allowed string) {
	if v.Type().Elem().Kind() == reflect.Struct && !isText(v.Type()) {
		table, ok := d.asStruct(v.Type().Elem(), raw)
		if !ok {
			return
		}
		if v.IsNil() {
			v.Set(newWithDefaults(v.Type().Elem()))
		}
		d.table(v.Elem(), table)
		return
	}
	p := newWithDefaults(v.Type().Elem())
	before := len(d.problems)
	d.value(p.Elem(), raw, allowed)
	if len(d.problems) == before {
		v.Set(p)
	}
}

// isText reports whether values of this pointer type are decoded from text, even if they are
// structs.
func isText(pointer reflect.Type) bool {
	return pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// newWithDefaults returns a pointer to a new t with its defaults.
func newWithDefaults(t reflect.Type) reflect.Value {
	p := reflect.New(t)
	if f, ok := p.Interface().(defaulter); ok {
		f.SetDefaults()
	}
	return p
}

// tables decodes a table of tables into the map v, from names to structs.
func (d *decoder) tables(v reflect.Value, tree map[string]any) {
	out := reflect.MakeMapWithSize(v.Type(), len(tree))
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		back := d.enter(name)
		if table, ok := d.asStruct(v.Type().Elem(), tree[name]); ok {
			e := newWithDefaults(v.Type().Elem())
			d.table(e.Elem(), table)
			out.SetMapIndex(reflect.ValueOf(name), e.Elem())
		}
		d.leave(back)
	}
	v.Set(out)
}

// slice decodes a list into v. An empty list becomes nil, so equal definitions compare as equal.
func (d *decoder) slice(v reflect.Value, raw any, allowed string) {
	if _, ok := v.Interface().(singleAllower); ok && !isList(raw) {
		d.loneElement(v, raw, allowed)
		return
	}
	switch list := raw.(type) {
	case []any:
		d.elements(v, len(list), func(i int) any { return list[i] }, allowed)
	case []map[string]any:
		d.elements(v, len(list), func(i int) any { return list[i] }, allowed)
	case map[string]any:
		d.problem("needs a list of tables, not one table: write [[...]] for its heading, or [{ ... }]").Misplaced = true
	case string:
		if f, ok := reflect.New(v.Type().Elem()).Interface().(exampler); ok {
			d.problem("needs a list of tables, such as [%s]", f.Example())
			return
		}
		d.problem("needs a list: write [%q]", shorten(list))
	default:
		d.wrongType("a list", raw)
	}
}

func isList(raw any) bool {
	switch raw.(type) {
	case []any, []map[string]any:
		return true
	}
	return false
}

// loneElement decodes raw into the only element of v. If raw is not a table, v does not change.
func (d *decoder) loneElement(v reflect.Value, raw any, allowed string) {
	p := newWithDefaults(v.Type().Elem())
	d.value(p.Elem(), raw, allowed)
	if _, isTable := raw.(map[string]any); isTable {
		v.Set(reflect.Append(reflect.Zero(v.Type()), p.Elem()))
	}
}

func (d *decoder) elements(v reflect.Value, n int, at func(int) any, allowed string) {
	if n == 0 {
		v.SetZero()
		return
	}
	out := reflect.MakeSlice(v.Type(), n, n)
	for i := range n {
		e := out.Index(i)
		if f, ok := e.Addr().Interface().(defaulter); ok {
			f.SetDefaults()
		}
		back := d.enterIndex(i)
		d.value(e, at(i), allowed)
		d.leave(back)
	}
	v.Set(out)
}
