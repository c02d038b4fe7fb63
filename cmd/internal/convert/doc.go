// Package convert writes services as TOML from the configuration of another load balancer.
//
//	text  ->  reader of the format  ->  draft: services, with the line that each field comes from  ->  fit  ->  TOML
//
// A reader (keepalived.go, haproxy.go, ...) parses its format and fills in a draft. It never fails on a line without an
// equivalent: the draft records it as a note that names the nearest setting. It fails on text that is not of its
// format, and on a listener without an address (":80") where Options has no address for it, with file and line.
//
// fit removes whatever the decoder of services refuses, with a note, so that what is written passes "vipctl check".
//
// The package reads one text. It does not follow includes, resolve names or look at this host.
//
//	result, err := convert.Convert("haproxy", "haproxy.cfg", text, convert.Options{})
//	fmt.Print(result.TOML)
package convert
