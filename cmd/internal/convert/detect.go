package convert

import (
	"bytes"
	"regexp"
)

// signs returns patterns that match lines of only one format, starting with the most reliable
// pattern.
func signs() []sign {
	return []sign{
		{"kubernetes", `(?m)^[ \t-]*["{]?(apiVersion|kind)"?:[ \t]|"apiVersion"[ \t]*:`},
		{"ldirectord", `(?m)^virtual6?[ \t]*=`},
		{"gobetween", `(?m)^[ \t]*\[servers\b|"discovery"[ \t]*:`},
		{"keepalived", `(?m)^[ \t]*(virtual_server|virtual_server_group|vrrp_instance|vrrp_sync_group|global_defs)\b`},
		{"ipvsadm", `(?m)^IP Virtual Server version|^[ \t]*((sudo[ \t]+)?\S+[ \t]+)?(-A|-a|--add-service|--add-server)[ \t]+(-[tuf]|--(tcp|udp|fwmark|sctp)-service)\b`},
		{"nginx", `(?m)^[ \t]*(stream|events|server|upstream[ \t]+\S+)[ \t\r\n]*\{`},
		{"haproxy", `(?m)^[ \t]*(global|defaults|frontend|backend|listen|peers|resolvers)\b`},
	}
}

type sign struct{ format, pattern string }

// Detect recognizes a configuration's format by typical lines. It returns "" if no format matches.
func Detect(text []byte) string {
	text = bytes.TrimPrefix(text, []byte("\ufeff")) // a byte order mark
	for _, s := range signs() {
		if regexp.MustCompile(s.pattern).Match(text) {
			return s.format
		}
	}
	return ""
}
