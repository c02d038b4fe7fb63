package decode_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"vipd/balancer/decode"
)

type color string

func (color) Values() []string { return []string{"red", "green"} }

func (color) Synonyms() map[string]string { return map[string]string{"rubyred": "red"} }

// shout is a type with its own UnmarshalText, which accepts only upper-case text.
type shout struct{ text string }

func (s *shout) UnmarshalText(text []byte) error {
	if string(text) != strings.ToUpper(string(text)) {
		return fmt.Errorf("%q is too quiet", text)
	}
	s.text = string(text)
	return nil
}

func (s shout) MarshalText() ([]byte, error) { return []byte(s.text), nil }

type item struct {
	Name   string `toml:"name,omitempty"`
	Weight int    `toml:"weight" range:"0,65535"`
}

func (i *item) SetDefaults() { i.Weight = 1 }

type shared struct {
	Level int8 `toml:"level"`
}

type config struct {
	shared
	Hidden   string
	Skipped  string            `toml:"-"`
	Text     string            `toml:"text"`
	Color    color             `toml:"color"`
	Flag     bool              `toml:"flag"`
	Small    uint8             `toml:"small"`
	Big      uint64            `toml:"big"`
	Port     uint16            `toml:"port" range:"1,"`
	Wait     time.Duration     `toml:"wait"`
	Bounded  time.Duration     `toml:"bounded" range:"1s,1h"`
	Any      time.Duration     `toml:"any" range:"-1h,"`
	Maybe    *time.Duration    `toml:"maybe"`
	Addr     netip.Addr        `toml:"addr"`
	Net      netip.Prefix      `toml:"net"`
	Nets     []netip.Prefix    `toml:"nets"`
	Words    []string          `toml:"words"`
	Numbers  []int             `toml:"numbers"`
	Labels   map[string]string `toml:"labels"`
	Ports    map[string]uint16 `toml:"ports"`
	Raw      map[string]any    `toml:"raw"`
	Item     item              `toml:"item"`
	Optional *item             `toml:"optional"`
	Items    []item            `toml:"items"`
	Shout    shout             `toml:"shout"`
	Shouts   []*shout          `toml:"shouts"`
}

func defaults() *config {
	return &config{
		shared: shared{Level: 3}, Text: "old", Color: "green", Wait: time.Second, Bounded: time.Minute, Item: item{Weight: 7},
		Words: []string{"old"},
	}
}

func lines(problems []decode.Problem) []string {
	var out []string
	for _, p := range problems {
		line := p.Path + ": " + p.Text
		if p.Unknown {
			line = "unknown: " + line
		}
		out = append(out, line)
	}
	return out
}

func fromTOML(t testing.TB, text string) map[string]any {
	t.Helper()
	var tree map[string]any
	if _, err := toml.Decode(text, &tree); err != nil {
		t.Fatalf("reading %s: %v", text, err)
	}
	return tree
}

func fromJSON(t testing.TB, text string) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	var tree map[string]any
	if err := d.Decode(&tree); err != nil {
		t.Fatalf("reading %s: %v", text, err)
	}
	return tree
}

const whole = `
level = -8
text = "new"
color = "red"
flag = true
small = 255
big = 9223372036854775807
port = 65535
wait = " 1m30s "
bounded = "1h"
any = "-1h"
maybe = "0s"
addr = "::ffff:10.0.0.1"
net = " 10.0.0.0/8"
nets = ["fd00::/64", "::ffff:10.1.0.0/112"]
words = []
numbers = [1, 2]
labels = { "a b" = "c" }
ports = { http = 80 }
shout = "HEY"
shouts = ["A", "B"]
items = [{ name = "a" }, { weight = 0 }]
[raw]
x = [1]
[item]
name = "only the name"
[optional]
`

// TestInto decodes a field of each type from TOML and from JSON. Both must result in the same
// values.
func TestInto(t *testing.T) {
	zero := time.Duration(0)
	want := &config{
		shared: shared{Level: -8}, Text: "new", Color: "red", Flag: true, Small: 255, Big: 1<<63 - 1, Port: 65535,
		Wait: 90 * time.Second, Bounded: time.Hour, Any: -time.Hour, Maybe: &zero, Addr: netip.MustParseAddr("10.0.0.1"),
		Net:     netip.MustParsePrefix("10.0.0.0/8"),
		Nets:    []netip.Prefix{netip.MustParsePrefix("fd00::/64"), netip.MustParsePrefix("10.1.0.0/16")},
		Numbers: []int{1, 2}, Labels: map[string]string{"a b": "c"}, Ports: map[string]uint16{"http": 80},
		Item: item{"only the name", 7}, Optional: &item{"", 1}, Items: []item{{"a", 1}, {"", 0}},
		Shout: shout{"HEY"}, Shouts: []*shout{{"A"}, {"B"}},
	}
	tree := fromTOML(t, whole)
	text, err := json.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	for name, tree := range map[string]map[string]any{"toml": tree, "json": fromJSON(t, string(text))} {
		got := defaults()
		if problems := decode.Into(got, tree); len(problems) > 0 {
			t.Errorf("%s: problems = %q, want none", name, lines(problems))
		}
		want.Raw, _ = tree["raw"].(map[string]any)
		options := cmp.Options{cmp.AllowUnexported(config{}, shout{}), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})}
		if diff := cmp.Diff(want, got, options); diff != "" {
			t.Errorf("%s: decoded (-want +got):\n%s", name, diff)
		}
		back := defaults()
		if problems := decode.Into(back, decode.Tree(got, defaults())); len(problems) > 0 || !reflect.DeepEqual(back, got) {
			t.Errorf("%s: problems after Tree = %q, want none; decoded (-want +got):\n%s", name, lines(problems), cmp.Diff(got, back, options))
		}
	}
}

// TestProblems decodes invalid tables. All problems must be reported, and the invalid fields must
// keep their values.
func TestProblems(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`level = 128`, `level: 128 is out of range; use -128 to 127`},
		{`text = 1979-05-27`, `text: needs text in quotes, not a date`},
		{`text = ["a"]`, `text: needs text in quotes, not a list`},
		{`color = "gren"`, `color: "gren" is not one of red, green; did you mean "green"?`},
		{`color = ""`, `color: "" is not one of red, green`},
		{`color = "Ruby-Red"`, `color: "Ruby-Red" is not one of red, green; did you mean "red"?`},
		{`color = true`, `color: needs one of "red", "green", not true`},
		{`flag = "true"`, `flag: needs true without quotes`},
		{`flag = "yes"`, `flag: needs true or false, not the text "yes"`},
		{`small = 256`, `small: 256 is out of range; use 0 to 255`},
		{`small = "12"`, `small: needs a number without quotes: write 12`},
		{`small = 1.5`, `small: needs a whole number, not the number 1.5`},
		{`big = -1`, `big: -1 is too small; use 0 or more`},
		{`port = 0`, `port: 0 is out of range; use 1 to 65535`},
		{`wait = 30`, `wait: 30 needs a unit: write "30s" for seconds`},
		{`wait = 1.5`, `wait: 1.5 needs a unit: write "1.5s" for seconds`},
		{`wait = "30"`, `wait: "30" needs a unit: write "30s" for seconds`},
		{`wait = "3 days"`, `wait: "3 days" is not a duration, such as "500ms", "30s", "5m" or "3h"`},
		{`wait = ""`, `wait: "" is not a duration, such as "500ms", "30s", "5m" or "3h"`},
		{`wait = true`, `wait: needs a duration in quotes, such as "30s", not true`},
		{`wait = "-1s"`, `wait: -1s is negative; use 0s or more`},
		{`bounded = "2h"`, `bounded: 2h is out of range; use 1s to 1h`},
		{`any = "-2h"`, `any: -2h is negative; use -1h or more`},
		{`maybe = 1`, `maybe: 1 needs a unit: write "1s" for seconds`},
		{`addr = "10.0.0.256"`, `addr: "10.0.0.256" is not an IP address, such as 192.168.1.11 or fd00::11`},
		{`addr = "fe80::1%eth0"`, `addr: "fe80::1%eth0" has a zone, which is not supported here; write fe80::1`},
		{`addr = "[fd00::1]:80"`, `addr: "[fd00::1]:80" has a port; write only the address: fd00::1`},
		{`net = "10.0.0.1/24"`, `net: "10.0.0.1/24" has host bits set: did you mean 10.0.0.0/24?`},
		{`net = "fd00::1"`, `net: "fd00::1" lacks a prefix length: write fd00::1/128 for this single address`},
		{`nets = "10.0.0.0/8"`, `nets: needs a list: write ["10.0.0.0/8"]`},
		{`nets = ["10.0.0.0/8", 7]`, `nets[1]: needs text in quotes, not the number 7`},
		{`numbers = [1, "x"]`, `numbers[1]: needs a whole number, not the text "x"`},
		{`labels = { a = 1 }`, `labels.a: needs text in quotes, not the number 1`},
		{`ports = { "a.b" = 65536 }`, `ports."a.b": 65536 is out of range; use 0 to 65535`},
		{`ports = [80]`, `ports: needs a table, not a list`},
		{`item = "x"`, `item: needs a table, not the text "x"`},
		{`optional = 1`, `optional: needs a table, not the number 1`},
		{`raw = 1`, `raw: needs a table, not the number 1`},
		{`items = { name = "a" }`, `items: needs a list of tables, not one table: write [[...]] for its heading, or [{ ... }]`},
		{`items = [{ weight = 65536 }, { nam = "a" }]`, `items[0].weight: 65536 is out of range; use 0 to 65535` + "\n" +
			`unknown: items[1].nam: unknown field; did you mean "name"?`},
		{`weight = 2`, `unknown: weight: unknown field; it is a field of item`},
		{`shout = "hey"`, `shout: "hey" is too quiet`},
		{`shouts = ["A", "b"]`, `shouts[1]: "b" is too quiet`},
		{"Hidden = 1\nSkipped = 2\nlevle = 1\n" + `"a b" = 3`, `unknown: Hidden: unknown field` + "\n" + `unknown: Skipped: unknown field` + "\n" +
			`unknown: "a b": unknown field` + "\n" + `unknown: levle: unknown field; did you mean "level"?`},
	} {
		target := defaults()
		got := strings.Join(lines(decode.Into(target, fromTOML(t, c.text))), "\n")
		if got != c.want {
			t.Errorf("%s\n got %s\nwant %s", c.text, got, c.want)
		}
		target.Nets, target.Numbers, target.Items, target.Shouts = nil, nil, nil, nil // a list keeps the indexes of invalid elements
		if !reflect.DeepEqual(target, defaults()) {
			t.Errorf("%s: defaults = %+v, want %+v", c.text, target, defaults())
		}
	}
}

// TestJSONOnly decodes values that JSON has but TOML does not. Null must leave fields unchanged,
// and the remaining values must cause problems.
func TestJSONOnly(t *testing.T) {
	target := defaults()
	got := lines(decode.Into(target, fromJSON(t, `{"text": null, "item": null, "labels": {"a": null}, "words": [null], "small": 1e2,
		"big": 99999999999999999999, "level": -99999999999999999999, "wait": 1e3}`)))
	want := []string{
		`level: -99999999999999999999 is out of range; use -128 to 127`,
		`small: needs a whole number, not the number 1e2`,
		`big: 99999999999999999999 is out of range`,
		`wait: needs a duration in quotes, such as "30s", not the number 1e3`,
		`words[0]: needs text in quotes, not null`,
	}
	if !slices.Equal(got, want) {
		t.Error(cmp.Diff(want, got))
	}
	if target.Text != "old" || target.Labels != nil {
		t.Errorf("all fields null: target = %+v, want the defaults", target)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"endpoints", "vips", "ports", "target_port", "weight", "idle_timeout", "connect_timeout", "source_rate"}
	for word, want := range map[string]string{
		"endpoint": "endpoints", "Endpoints": "endpoints", "vip": "vips", "port": "ports", "wieght": "weight",
		"target-port": "target_port", "targetport": "target_port", "conect_timeout": "connect_timeout", "timeout": "", "x": "", "": "", "v": "", "idle": "idle_timeout", "Target": "target_port", "rate": "source_rate",
		"weight": "weight", strings.Repeat("vips", 100): "",
	} {
		if got := decode.Nearest(word, known); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestFormatDuration(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 3 * time.Hour: "3h", 90 * time.Second: "1m30s", time.Hour + time.Second: "1h0m1s", 10 * time.Minute: "10m",
		10 * time.Second: "10s", 1500 * time.Millisecond: "1.5s", -20 * time.Hour: "-20h",
	} {
		if got := decode.FormatDuration(d); got != want {
			t.Errorf("FormatDuration(%d) = %q, want %q", d, got, want)
		}
		if back, err := time.ParseDuration(want); err != nil || back != d {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", want, back, err, d)
		}
	}
}

// BenchmarkInto decodes a list of 100,000 tables.
func BenchmarkInto(b *testing.B) {
	items := make([]map[string]any, 100_000)
	for i := range items {
		items[i] = map[string]any{"name": fmt.Sprint(i), "weight": int64(i % 100)}
	}
	tree := map[string]any{"items": items}
	b.ReportAllocs()
	for b.Loop() {
		target := config{}
		if problems := decode.Into(&target, tree); len(problems) > 0 {
			b.Fatal(lines(problems))
		}
	}
}

// TestTableOfTables decodes a table into a map from names to structs. Each struct must have its
// defaults, and values that are not tables must be omitted.
func TestTableOfTables(t *testing.T) {
	var v struct {
		Items map[string]item `toml:"items"`
	}
	problems := decode.Into(&v, map[string]any{"items": map[string]any{
		"a": map[string]any{}, "b c": map[string]any{"weight": int64(3)}, "d": int64(1), "e": map[string]any{"wight": int64(1)},
	}})
	weights := map[string]int{}
	for name, i := range v.Items {
		weights[name] = i.Weight
	}
	if d := cmp.Diff(map[string]int{"a": 1, "b c": 3, "e": 1}, weights); d != "" {
		t.Errorf("weights (-want +got): %s", d)
	}
	want := []string{"items.d: needs a table, not the number 1", `unknown: items.e.wight: unknown field; did you mean "weight"?`}
	if d := cmp.Diff(want, lines(problems)); d != "" {
		t.Errorf("problems (-want +got): %s", d)
	}
}

// loneList is a list that users may write as a single element.
type loneList []struct {
	Name string `toml:"name"`
}

func (loneList) AllowsSingle() {}

// TestSingleElement decodes a list that users may also write as a single table. The path of a
// problem must contain an index only if a list was written. Tree must encode a list with one
// element as a table.
func TestSingleElement(t *testing.T) {
	type holder struct {
		List loneList `toml:"list"`
	}
	table := func(name any) any { return map[string]any{"name": name} }
	for _, c := range []struct {
		list any
		want string // path of the problem
		n    int
	}{
		{table("a"), "", 1},
		{[]any{table("a"), table("b")}, "", 2},
		{[]any{}, "", 0},
		{table(1.5), "list.name", 1},
		{[]any{table("a"), table(1.5)}, "list[1].name", 2},
		{"a", "list", 0},
	} {
		var h holder
		path := ""
		for _, p := range decode.Into(&h, map[string]any{"list": c.list}) {
			path = p.Path
		}
		if path != c.want || len(h.List) != c.n {
			t.Errorf("Into(%v): elements = %d, problem path = %q, want %d, %q", c.list, len(h.List), path, c.n, c.want)
		}
	}
	tree := decode.Tree(&holder{List: loneList{{Name: "a"}}}, &holder{})
	if _, isTable := tree["list"].(map[string]any); !isTable {
		t.Errorf("Tree() of a list with one element = %v, want a table", tree)
	}
}
