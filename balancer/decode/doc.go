// Package decode reads untyped trees, as TOML and JSON decoders give them, strictly into structs.
//
// The struct holds the defaults, its tags name the fields, and every problem in the tree is collected with the path
// of its field, in sentences for the people who wrote it:
//
//	target := Config{Interval: time.Second}
//	for _, p := range decode.Into(&target, tree) {
//		fmt.Println(p.Path + ": " + p.Text)
//	}
//
// Fields are matched by their tag `toml:"name"` alone; those without one, or with "-", are not read. Embedded structs
// without a tag lend their fields to the struct around them. A tag `range:"0,65535"` narrows a number, and
// `range:"1s,1h"` a duration; either end may be left out. Without it numbers have the range of their type, and
// durations are not negative.
//
// What a tree may hold: string, bool, int64, float64, json.Number, time.Time, []any, []map[string]any,
// map[string]any, and nil (null in JSON), which counts as a field that is not there.
//
// What a struct may hold: strings, typed strings that list their Values, bools, integers, time.Duration, netip.Addr,
// netip.Prefix, anything with UnmarshalText, slices and pointers of these, structs, map[string]string,
// map[string]uint16, and map[string]any, which takes a table as it is. Other types are mistakes of the program, and
// Into panics on them.
//
// Tree is the way back.
package decode
