// Package config defines the daemon's own part of vipd.toml: its fields, their defaults, and their
// valid values. The services in the same file belong to the file store (store/tomlfile), which
// reads the file for both.
//
// vipd uses the package to load its configuration. vipctl uses it to check a file, and to find the
// daemon's socket.
package config
