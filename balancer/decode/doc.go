// Package decode strictly decodes untyped trees, the output of TOML and JSON decoders, into
// structs.
//
// The struct holds the defaults, and its tags name the fields. Into collects all problems with the
// tree, each with its field's path and a sentence for the user:
//
//	target := Config{Interval: time.Second}
//	for _, p := range decode.Into(&target, tree) {
//		fmt.Println(p.Path + ": " + p.Text)
//	}
//
// Fields match by their tag `toml:"name"`. Fields without a tag, or with "-", are not decoded. The
// fields of an embedded struct without a tag belong to the outer struct. A tag `range:"0,65535"`
// limits a number, and `range:"1s,1h"` a duration. Either end may be empty. Without the tag, the
// type limits numbers, and durations are not negative.
//
// A tree may contain string, bool, int64, float64, json.Number, time.Time, []any, []map[string]any,
// map[string]any, and nil (null in JSON). A nil field is treated as missing.
//
// A struct may contain strings, string types that list their Values, bools, integers,
// time.Duration, netip.Addr, netip.Prefix, types with UnmarshalText, slices and pointers of these,
// and structs. It may also contain map[string]string, map[string]uint16, and map[string]any, which
// keeps a table unchanged. Into panics on other types.
//
// [Tree] is the inverse of [Into].
package decode
