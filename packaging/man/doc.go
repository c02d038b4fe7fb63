// Man writes the manual pages: vipd(8), vipctl(1), one for each command of vipctl, and
// vipd.toml(5).
//
//	go run ./packaging/man -bin bin -o build/man
//
// The content of the pages comes from the --help output of the built programs, systemd/vipd.toml
// and docs/reference.md. Run the command at the top of the source tree.
package main
