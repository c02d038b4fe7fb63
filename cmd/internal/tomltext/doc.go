// Package tomltext formats definitions of services as TOML. It formats keys and values, which were
// decoded from JSON. Callers write comments and the headings of tables, such as [services.web].
// Package store/tomlfile reads TOML.
package tomltext
