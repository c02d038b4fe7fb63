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

// Problem is one thing that is wrong in a tree.
type Problem struct {
	// Path leads to the field, such as endpoints[2].weight. Names that are no plain words are quoted.
	Path string
	// Unknown: the struct has no such field. All other problems are about values.
	Unknown bool
	// Misplaced reports whether the value may belong elsewhere, because a heading before it is missing: the field is unknown, or has a
	// table or a list where it needs something else.
	Misplaced bool
	// Text says what is wrong and what is possible.
	Text string
}

// defaulter is implemented by pointers to structs that have defaults. Into calls SetDefaults on each one that it
// makes: elements of slices, and what a nil pointer is set to.
type defaulter interface{ SetDefaults() }

// exampler is implemented by pointers to structs that users are likely to write a plain value for: Example is a short one.
type exampler interface{ Example() string }

// Values is implemented by typed strings of which only some are possible.
type Values interface{ Values() []string }

// Synonyms is implemented by [Values] that other programs call by other names. Synonyms returns the value that each name stands for; a
// name is in lower case, without "_" and "-".
type Synonyms interface{ Synonyms() map[string]string }

// Into reads tree into the struct that target points to, and returns everything that is wrong in it, in the order of
// the struct's fields. A field with a problem, or that is not in the tree, keeps the value it has. An element of a list
// that has a problem keeps its defaults, so that the others keep their places.
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
	// plans are those of the structs met so far. They are made anew by each Into, which costs some microseconds and
	// spares the program a cache for all.
	plans    map[reflect.Type][]field
	path     []byte // of the value at hand; kept as one buffer, so that paths cost nothing until there is a problem
	problems []Problem
}

// field is one field of a struct.
type field struct {
	name    string
	index   []int
	allowed string // the range tag
}

// fields lists the fields of t, in order, with those of embedded structs.
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

// problem notes what is wrong with the value at hand.
func (d *decoder) problem(format string, args ...any) {
	d.problems = append(d.problems, Problem{Path: string(d.path), Text: fmt.Sprintf(format, args...)})
}

// wrong notes that the value at hand is of another type than the wanted one.
func (d *decoder) wrong(wanted string, raw any) {
	d.problem("needs %s, not %s", wanted, describe(raw))
	d.problems[len(d.problems)-1].Misplaced = isComposite(raw)
}

// isComposite reports whether raw is a table or a list.
func isComposite(raw any) bool {
	switch raw.(type) {
	case map[string]any, []any, []map[string]any:
		return true
	}
	return false
}

// Join returns the path of the field called name in the table at path.
func Join(path, name string) string { return string(AppendName([]byte(path), name)) }

// AppendName is Join for paths that are put together in one buffer.
func AppendName(path []byte, name string) []byte {
	if len(path) > 0 {
		path = append(path, '.')
	}
	if plain(name) {
		return append(path, name...)
	}
	return strconv.AppendQuote(path, name)
}

// enter moves the path to the field called name and returns the length to go back to.
func (d *decoder) enter(name string) int {
	back := len(d.path)
	d.path = AppendName(d.path, name)
	return back
}

// enterIndex moves the path to element i and returns the length to go back to.
func (d *decoder) enterIndex(i int) int {
	back := len(d.path)
	d.path = append(d.path, '[')
	d.path = strconv.AppendInt(d.path, int64(i), 10)
	d.path = append(d.path, ']')
	return back
}

func (d *decoder) leave(back int) { d.path = d.path[:back] }

// plain reports whether TOML takes name as a key without quotes.
func plain(name string) bool {
	return name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}

// table reads tree into the struct v.
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

// unknown notes the keys of tree that are not in plan, the one of t.
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
		if at := d.inside(t, plan, key); at != "" {
			hint = "; it is a field of " + at
		}
		d.problem("unknown field%s", hint)
		last := &d.problems[len(d.problems)-1]
		last.Unknown, last.Misplaced = true, true
		d.leave(back)
	}
}

// topLevel reports whether key is a setting of vipd.toml that stands in no table. One that is written below a table's header
// belongs to that table.
func topLevel(key string) bool {
	return slices.Contains([]string{"mode", "strict_mode", "node", "zone", "state_dir", "run_dir"}, key)
}

// inside returns the first field of t that is a table, or a list of tables, with the key.
func (d *decoder) inside(t reflect.Type, plan []field, key string) string {
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

// value reads raw into v. The types with a special meaning come first, then those of which only the kind
// counts.
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
		d.unmarshal(t, raw)
	default:
		d.kind(v, raw, allowed)
	}
}

func (d *decoder) kind(v reflect.Value, raw any, allowed string) {
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
	default:
		panic(fmt.Sprintf("decode: %s is of type %s, which can't be read", d.path, v.Type()))
	}
}

func (d *decoder) asTable(raw any) (map[string]any, bool) {
	table, ok := raw.(map[string]any)
	if !ok {
		d.wrong("a table", raw)
	}
	return table, ok
}

// asStruct is asTable where the table becomes a t, of which there may be an example.
func (d *decoder) asStruct(t reflect.Type, raw any) (map[string]any, bool) {
	table, ok := raw.(map[string]any)
	if ok {
		return table, true
	}
	if f, ok := reflect.New(t).Interface().(exampler); ok {
		d.wrong("a table, such as "+f.Example(), raw)
		return nil, false
	}
	return d.asTable(raw)
}

// pointer reads raw into what v points to, or into something new. A table stays as far as it could be read, a plain
// value only if it is right.
func (d *decoder) pointer(v reflect.Value, raw any, allowed string) {
	if v.Type().Elem().Kind() == reflect.Struct && !isText(v.Type()) {
		table, ok := d.asStruct(v.Type().Elem(), raw)
		if !ok {
			return
		}
		if v.IsNil() {
			v.Set(fresh(v.Type().Elem()))
		}
		d.table(v.Elem(), table)
		return
	}
	p := fresh(v.Type().Elem())
	before := len(d.problems)
	d.value(p.Elem(), raw, allowed)
	if len(d.problems) == before {
		v.Set(p)
	}
}

// isText reports whether values of this pointer type are written as text, although they are structs.
func isText(pointer reflect.Type) bool {
	return pointer.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// fresh returns a pointer to a new t with its defaults.
func fresh(t reflect.Type) reflect.Value {
	p := reflect.New(t)
	if f, ok := p.Interface().(defaulter); ok {
		f.SetDefaults()
	}
	return p
}

// slice reads a list into v. An empty one is nil, so that there is one way to say it.
func (d *decoder) slice(v reflect.Value, raw any, allowed string) {
	switch list := raw.(type) {
	case []any:
		d.elements(v, len(list), func(i int) any { return list[i] }, allowed)
	case []map[string]any:
		d.elements(v, len(list), func(i int) any { return list[i] }, allowed)
	case map[string]any:
		d.problem("needs a list of tables, not one table: write [[...]] for its heading, or [{ ... }]")
		d.problems[len(d.problems)-1].Misplaced = true
	case string:
		if f, ok := reflect.New(v.Type().Elem()).Interface().(exampler); ok {
			d.problem("needs a list of tables, such as [%s]", f.Example())
			return
		}
		d.problem("needs a list: write [%q]", shorten(list))
	default:
		d.wrong("a list", raw)
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
