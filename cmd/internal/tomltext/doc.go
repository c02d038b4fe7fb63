// Package tomltext formats definitions of services as TOML: keys, and values decoded from JSON. The
// reader is store/tomlfile. Callers write comments and tables ([services.web]).
package tomltext
