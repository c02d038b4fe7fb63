// Package tomltext formats definitions of services as TOML: keys, and values that were decoded from
// JSON. Package store/tomlfile reads TOML. Callers write comments and tables ([services.web]).
package tomltext
