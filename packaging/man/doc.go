// Man writes the manual pages: vipd(8), vipctl(1), one for each command of vipctl, and vipd.toml(5).
//
//	go run ./packaging/man -bin bin -o build/man
//
// They say what is written elsewhere already: what the built programs print with --help, the settings of
// systemd/vipd.toml, and docs/reference.md. It runs at the top of the tree.
package main
