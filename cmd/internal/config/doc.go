// Package config is the daemon's own part of vipd.toml: its fields, their defaults, and what may be written in them.
// The services in the same file are the file store's (store/tomlfile), which reads the file for both.
//
// vipd loads it to run by it, vipctl to check a file and to find the daemon's socket.
package config
