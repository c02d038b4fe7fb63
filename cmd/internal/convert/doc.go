// Package convert converts another load balancer's configuration, the origin, to services in TOML.
//
//	text  ->  reader of the format  ->  draft: services, with the line that each field comes from  ->  fit  ->  TOML
//
// A reader (keepalived.go, haproxy.go, ...) parses its format and fills in a draft. A line without
// an equivalent becomes a note that names the nearest setting. A service that would behave
// differently from the origin is disabled: it is commented out, with the reasons.
//
// fit removes fields that the service decoder refuses, with a note for each, so the output passes
// "vipctl check".
//
// Detect recognizes a configuration's format.
//
// The package reads only the given text. It does not follow includes, resolve names or inspect this
// host.
//
//	result, err := convert.Convert("haproxy", "haproxy.cfg", text, convert.Options{})
//	fmt.Print(result.TOML)
package convert
