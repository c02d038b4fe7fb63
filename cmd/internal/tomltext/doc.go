// Package tomltext formats service definitions as TOML. It formats keys and values that were
// decoded from JSON. Callers write comments and table headings, such as [services.web]. Package
// store/tomlfile reads TOML.
package tomltext
