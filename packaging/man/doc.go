// Man writes the manual pages: vipd(8), vipctl(1), one for each command of vipctl, and
// vipd.toml(5).
//
//	go run ./packaging/man -bin bin -o build/man
//
// Their content has other sources: the --help of the built programs, the settings in
// systemd/vipd.toml, and docs/reference.md. It runs at the top of the tree.
package main
