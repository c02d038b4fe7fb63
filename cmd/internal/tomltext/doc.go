// Package tomltext writes definitions of services as TOML: keys, and values as they come out of JSON. The reader is
// store/tomlfile. Comments and tables ([services.web]) are the caller's.
package tomltext
